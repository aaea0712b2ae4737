// Package posix keeps layers in a folder: of a local disk, or of a shared file system that is mounted on every
// node.
//
//	layers/<hex>/manifest.json   the canonical manifest; BLAKE3 of it is <hex>
//	layers/<hex>/meta.erofs
//	layers/<hex>/data            absent when the layer has no data
//	staging/<id>/                what is being made; <id>.lock is held by its maker
//
// A layer is published by renaming a complete, synced directory, so that it is there whole or not at all.
// Staging of a process that died is removed when the store is opened. A [Node] hands a store's own files to
// the backends of the same machine.
package posix
