// Package s3 keeps layers in a bucket of any S3 service.
//
//	<prefix>layers/<hex>/manifest.json   the canonical manifest; BLAKE3 of it is <hex>
//	<prefix>layers/<hex>/meta.erofs.zst  the metadata image, compressed (Zstandard); "meta.erofs" as it is, by earlier versions
//	<prefix>layers/<hex>/data            absent when the layer has no data
//
// The manifest is written last, on the condition that it is not there yet: a layer is there when its manifest is.
// What concurrent publishers of one layer write is the same, so that whoever is second does no harm.
package s3
