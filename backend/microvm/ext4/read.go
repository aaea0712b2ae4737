package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrBroken is wrapped by what is said of a file system that cannot be read.
var ErrBroken = errors.New("the file system cannot be read")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// features that change how it is read: file types in directories, extents, 64 bits, flexible groups, a seed of checksums, large
// directories.
const features = 0x2 | 0x40 | 0x80 | 0x200 | 0x2000 | 0x4000

const (
	superblock  = 1024
	magic       = 0xef53
	rootInode   = 2
	flagExtents = 0x80000
	flagInline  = 0x10000000
	maxFile     = 1 << 44
	maxDir      = 64 << 20 // bytes
	extentMagic = 0xf30a
	maxDepth    = 5 // of extents' trees
)

// FS is an open file system.
type FS struct {
	r         io.ReaderAt
	block     int64
	blocks    uint64
	perGroup  uint32 // inodes
	inodes    uint32
	inodeSize int64
	descSize  int64
	groups    int64 // where their descriptors begin, bytes
}

// Open reads the superblock.
func Open(r io.ReaderAt) (*FS, error) {
	b := make([]byte, 1024)
	if _, err := r.ReadAt(b, superblock); err != nil {
		return nil, broken("no superblock: %v", err)
	}
	le := binary.LittleEndian
	if le.Uint16(b[56:]) != magic {
		return nil, broken("no superblock")
	}
	incompat := le.Uint32(b[96:])
	if more := incompat &^ features; more != 0 {
		return nil, broken("it has features %#x that are not known here", more)
	}
	shift := le.Uint32(b[24:])
	if shift > 6 {
		return nil, broken("blocks of 2^%d KiB", shift)
	}
	f := &FS{r: r, block: 1024 << shift, blocks: uint64(le.Uint32(b[4:])), perGroup: le.Uint32(b[40:]), inodes: le.Uint32(b[0:]),
		inodeSize: int64(le.Uint16(b[88:])), descSize: 32}
	if incompat&0x80 != 0 {
		f.descSize = int64(le.Uint16(b[254:]))
		f.blocks |= uint64(le.Uint32(b[336:])) << 32
	}
	f.groups = (int64(le.Uint32(b[20:])) + 1) * f.block
	if f.perGroup == 0 || f.inodeSize < 128 || f.inodeSize > f.block || f.descSize < 32 || f.descSize > 1024 || f.blocks > 1<<40 {
		return nil, broken("its superblock makes no sense")
	}
	return f, nil
}

// Size is how many bytes it has.
func (f *FS) Size() int64 { return int64(f.blocks) * f.block }

// inode is one file.
type inode struct {
	num      uint32
	mode     uint16
	uid, gid uint32
	size     int64
	links    uint16
	mtime    int64 // seconds
	nsec     int64
	flags    uint32
	data     [60]byte // extents, a short link, or a device's number
	acl      uint64   // block of extended attributes
	extra    []byte   // extended attributes beside it
}

func (f *FS) inode(num uint32) (*inode, error) {
	if num == 0 || num > f.inodes {
		return nil, broken("inode %d does not exist", num)
	}
	le := binary.LittleEndian
	desc := make([]byte, f.descSize)
	if _, err := f.r.ReadAt(desc, f.groups+int64((num-1)/f.perGroup)*f.descSize); err != nil {
		return nil, broken("group of inode %d: %v", num, err)
	}
	table := uint64(le.Uint32(desc[8:]))
	if f.descSize >= 64 {
		table |= uint64(le.Uint32(desc[40:])) << 32
	}
	if table >= f.blocks {
		return nil, broken("inode %d lies outside", num)
	}
	b := make([]byte, f.inodeSize)
	if _, err := f.r.ReadAt(b, int64(table)*f.block+int64((num-1)%f.perGroup)*f.inodeSize); err != nil {
		return nil, broken("inode %d: %v", num, err)
	}
	i := &inode{num: num, mode: le.Uint16(b[0:]), links: le.Uint16(b[26:]), flags: le.Uint32(b[32:]),
		uid:   uint32(le.Uint16(b[2:])) | uint32(le.Uint16(b[120:]))<<16,
		gid:   uint32(le.Uint16(b[24:])) | uint32(le.Uint16(b[122:]))<<16,
		size:  int64(uint64(le.Uint32(b[4:])) | uint64(le.Uint32(b[108:]))<<32),
		mtime: int64(int32(le.Uint32(b[16:]))),
		acl:   uint64(le.Uint32(b[104:])) | uint64(le.Uint16(b[118:]))<<32,
	}
	copy(i.data[:], b[40:100])
	if f.inodeSize > 128 {
		size := int64(le.Uint16(b[128:]))
		if 128+size > f.inodeSize {
			return nil, broken("inode %d is too large", num)
		}
		if size >= 12 {
			extra := le.Uint32(b[136:])
			i.mtime += int64(extra&3) << 32
			i.nsec = int64(extra >> 2)
		}
		i.extra = b[128+size:]
	}
	if i.size < 0 || i.size > maxFile || i.nsec >= 1e9 || i.flags&flagInline != 0 {
		return nil, broken("inode %d makes no sense", num)
	}
	return i, nil
}

// extent is a run of a file's blocks.
type extent struct {
	from, count int64 // in the file, blocks
	at          int64 // in the file system, blocks
}

// extents lists a file's runs in order; what lies between is zeros.
func (f *FS) extents(i *inode) ([]extent, error) {
	if i.flags&flagExtents == 0 {
		if i.size > 0 {
			return nil, broken("inode %d has no extents", i.num)
		}
		return nil, nil
	}
	var out []extent
	err := f.node(i, i.data[:], maxDepth, &out)
	return out, err
}

func (f *FS) node(i *inode, b []byte, depth int, out *[]extent) error {
	le := binary.LittleEndian
	bad := func() error { return broken("extents of inode %d make no sense", i.num) }
	n, level := int(le.Uint16(b[2:])), int(le.Uint16(b[6:]))
	if le.Uint16(b) != extentMagic || level >= depth+1 || 12+12*n > len(b) {
		return bad()
	}
	for k := range n {
		e := b[12+12*k:]
		if level > 0 {
			at := uint64(le.Uint32(e[4:])) | uint64(le.Uint16(e[8:]))<<32
			if at >= f.blocks {
				return bad()
			}
			sub := make([]byte, f.block)
			if _, err := f.r.ReadAt(sub, int64(at)*f.block); err != nil {
				return broken("extents of inode %d: %v", i.num, err)
			}
			if int(le.Uint16(sub[6:])) != level-1 {
				return bad()
			}
			if err := f.node(i, sub, level-1, out); err != nil {
				return err
			}
			continue
		}
		x := extent{from: int64(le.Uint32(e)), count: int64(le.Uint16(e[4:])), at: int64(le.Uint32(e[8:])) | int64(le.Uint16(e[6:]))<<32}
		if x.count > 1<<15 {
			continue // reserved, never written: zeros
		}
		last := int64(0)
		if len(*out) > 0 {
			o := (*out)[len(*out)-1]
			last = o.from + o.count
		}
		// In order and without overlap: a file cannot have more runs, or more bytes, than the file system.
		if x.from < last || uint64(x.at+x.count) > f.blocks || uint64(len(*out)) > f.blocks {
			return bad()
		}
		*out = append(*out, x)
	}
	return nil
}

// read calls write with each piece of a file that is not a hole.
func (f *FS) read(i *inode, write func(at int64, b []byte) error) error {
	all, err := f.extents(i)
	if err != nil {
		return err
	}
	buf := make([]byte, max(f.block, 256<<10))
	for _, x := range all {
		for done := int64(0); done < x.count*f.block; {
			at := x.from*f.block + done
			n := min(int64(len(buf)), x.count*f.block-done, i.size-at)
			if n <= 0 {
				break
			}
			if _, err := f.r.ReadAt(buf[:n], x.at*f.block+done); err != nil {
				return broken("inode %d: %v", i.num, err)
			}
			if err := write(at, buf[:n]); err != nil {
				return err
			}
			done += n
		}
	}
	return nil
}

// bytes reads a small file.
func (f *FS) bytes(i *inode, most int64) ([]byte, error) {
	if i.size > most {
		return nil, broken("inode %d has %d bytes, more than %d", i.num, i.size, most)
	}
	b := make([]byte, i.size)
	return b, f.read(i, func(at int64, p []byte) error { copy(b[at:], p); return nil })
}
