package erofs

// On-disk constants of EROFS, from its format documentation in the Linux kernel. All fields are little endian.
const (
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xE0F5E1E2

	deviceSlotOffset = superOffset + superSize
	deviceSlotSize   = 128

	// Inodes begin at the second block, so that the first is complete with the superblock alone.
	inodeStart = BlockSize
	slotSize   = 32 // inodes are numbered by their offset in units of this

	compactSize  = 32
	extendedSize = 64

	compatChecksum = 0x1
	compatMtime    = 0x2

	incompatChunkedFile = 0x4
	incompatDeviceTable = 0x8

	layoutPlain  = 0
	layoutInline = 2 // the last partial block follows the inode
	layoutChunk  = 4

	chunkFormatIndexes = 0x20
	chunkIndexSize     = 8
	nullBlock          = 0xFFFFFFFF
	blobDevice         = 1

	xattrHeaderSize = 12
	xattrEntrySize  = 4

	direntSize = 12
)

// xattrPrefixes are the name prefixes that have a number; the rest of the name is stored.
var xattrPrefixes = []struct {
	prefix string
	index  uint8
	exact  bool
}{
	{"user.", 1, false},
	{"system.posix_acl_access", 2, true},
	{"system.posix_acl_default", 3, true},
	{"trusted.", 4, false},
	{"security.", 6, false},
}

// fileTypes maps st_mode's type to the type in a directory entry.
func fileType(mode uint32) byte {
	switch mode & TypeMask {
	case TypeRegular:
		return 1
	case TypeDir:
		return 2
	case TypeChar:
		return 3
	case TypeBlock:
		return 4
	case TypeFifo:
		return 5
	case TypeSocket:
		return 6
	case TypeSymlink:
		return 7
	}
	return 0
}
