// Package ext4 reads file systems that a virtual machine has written, without the node's kernel: mounting what a guest has
// written would put its bytes before the kernel's parser. It knows what mke2fs makes for machines' disks (see features);
// anything else is refused. All that it reads is hostile: sizes, depths and counts are bounded, and what
// comes out takes no more than the disk's size, whatever the file system says of its own (Limits).
//
// Extract copies a directory out of it, as an overlay's upper directory: whiteouts and opaque directories as overlayfs has them.
// Device files other than whiteouts, and sockets, are left out.
package ext4
