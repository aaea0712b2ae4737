package erofs

// File types, as in st_mode.
const (
	TypeMask    = 0o170000
	TypeSocket  = 0o140000
	TypeSymlink = 0o120000
	TypeRegular = 0o100000
	TypeBlock   = 0o060000
	TypeDir     = 0o040000
	TypeChar    = 0o020000
	TypeFifo    = 0o010000
)

// Limits of what an image can hold.
const (
	BlockSize     = 4096
	MaxNameLen    = 255
	MaxTargetLen  = 4095
	MaxFileSize   = 1 << 43 // bytes: one chunk of the largest size
	MaxXattrValue = 1<<16 - 1
	maxIndexes    = 1 << 24 // chunk indexes of one file
)

// OpaqueXattr set to "y" makes a directory hide what lower layers have at its place.
const OpaqueXattr = "trusted.overlay.opaque"

// OriginXattr, empty, on a directory tells the kernel that it may hold whiteouts: it looks for them in directories of several
// layers only, and else would list their names.
const OriginXattr = "trusted.overlay.origin"

// Inode is one object of the tree. The writer keeps its own marks in it: an Inode belongs to one tree.
type Inode struct {
	Mode         uint32 // type and permission bits, as in st_mode
	UID, GID     uint32
	Mtime        int64  // seconds since 1970, may be negative
	MtimeNsec    uint32 // 0..999999999
	Size         int64  // regular files, bytes
	Major, Minor uint32 // devices; both 0 on a character device is an overlay whiteout
	Target       string // symbolic links
	Xattrs       []Xattr
	Extents      []Extent // regular files; ascending, not overlapping
	Entries      []Dirent // directories; sorted by name, bytewise, without "." and ".."

	place place
}

// Xattr is an extended attribute with its full name, as in "user.mime" or "security.capability".
type Xattr struct {
	Name  string
	Value string
}

// Extent is a part of a file's data. Offset (in the file) and Blob (in the blob) are multiples of BlockSize;
// so is Length, but for the extent that ends at the file's size.
type Extent struct {
	Offset, Length, Blob int64
}

// Dirent names an inode in a directory.
type Dirent struct {
	Name  string
	Inode *Inode
}

// IsDir tells whether i is a directory.
func (i *Inode) IsDir() bool { return i.Mode&TypeMask == TypeDir }

// IsRegular tells whether i is a regular file.
func (i *Inode) IsRegular() bool { return i.Mode&TypeMask == TypeRegular }

// IsWhiteout tells whether i hides a name of lower layers.
func (i *Inode) IsWhiteout() bool {
	return i.Mode&TypeMask == TypeChar && i.Major == 0 && i.Minor == 0
}

// place is where the layout puts an inode.
type place struct {
	by      *layout // who set the rest; anything else is a stale mark of another write
	offset  int64   // of the inode, in the image
	ino     uint32
	nlink   uint32
	blocks  int64 // first block of data outside the inode
	size    int64 // of a directory's data
	xattr   int   // bytes of the xattr body
	chunk   uint8 // log2 of the chunk size in blocks
	layout  uint8 // EROFS data layout
	compact bool
}
