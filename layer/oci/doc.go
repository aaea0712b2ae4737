// Package oci reads container images, from registries, OCI layouts and `docker save` archives, and adds them
// to a tree: all their layers, bottom to top, whiteouts applied, so that one layer of ours comes out.
//
// An [Image] is described by its manifest alone; its layers are read only by [Image.AddTo]. Whatever is read
// is verified against the digest by which the image names it.
package oci
