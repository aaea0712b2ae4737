// Package erofs writes EROFS images: metadata only, with the file data in a separate blob.
//
// Words. The image holds the superblock, inodes, directory entries, symbolic links, extended attributes and
// chunk indexes. The blob (EROFS device 1) holds file data in blocks of BlockSize. An [Inode] is one file
// system object; a [Dirent] names it, and several names of one Inode are hard links. An [Extent] says where in
// the blob a part of a file lies; what no extent covers is a hole and reads as zeros.
//
// The image is a function of its input alone: the same tree gives the same bytes on every machine. It needs
// Linux 5.16 (chunk-based files and the device table); mounting it from a plain file needs 6.12. It is mounted
// with the option device=BLOB. The device table also gives the blob the block address that follows the
// image's end, so that image and blob put behind one another are one image that needs no device option.
//
// The package writes no compressed data. [Read] takes what [Write] made, and nothing else, however hostile.
package erofs
