// Package disk reads the images of disks that full virtual machines start from: raw ones, and qcow2 by a reader of its own.
//
// An image is a stranger's. Formats that can name other files of the machine that reads them (backing files, external
// data files, descriptors) are how such an image would steal one; so nothing here opens a path, what refers to anything
// outside of the image is refused, and no other program sees an image before it has become plain bytes.
//
//	img, err := disk.Open(f, size)   // checked: sandbox.ErrInvalid or ErrUnsupported, with what to do
//	io.Copy(w, img.Content())        // img.Size bytes, zeros where the image has nothing
package disk
