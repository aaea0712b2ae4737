// Package lazy gives a node's backends layers whose data stays in the store until it is read.
//
// A layer's metadata is fetched whole and verified before it is used. Its data is one file of a FUSE mount
// (internal/fuse) that EROFS takes as its device. What is read of it is fetched in chunks, several together where
// they lie side by side and ahead of a reader that goes straight on; each chunk is compared with its digest in the
// manifest before a byte of it is served, and kept in the node's cache (layer/lazy/cache), which all layers share.
//
// [Server] is blobd's part, [Node] the part of whoever mounts. The mount and the FUSE device outlive the server:
// `dsec hold` keeps them. Readers wait for a successor; when none comes within the store's timeout, or the store does
// not answer for as long, they get EIO, and the fault is written down first ([Faults]) for the edge to read. A later
// read tries again: nothing is mounted again for it.
package lazy
