package erofs

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// Read parses a whole image that Write made and returns its tree; dataSize is the size of its blob, which no extent may
// leave. Whatever else the bytes hold is refused: memory is bounded by the size of the image. Error: ErrInvalid.
func Read(image []byte, dataSize int64) (*Inode, error) {
	r := &reader{b: image, dataSize: dataSize, seen: map[uint64]*Inode{}, dirs: map[uint64]bool{}}
	root, err := r.open()
	if err != nil {
		return nil, fmt.Errorf("read image: %w: %w", ErrInvalid, err)
	}
	return root, nil
}

// reader holds an image that is being read.
type reader struct {
	b        []byte
	dataSize int64
	epoch    int64
	nsec     uint32
	names    int
	seen     map[uint64]*Inode // files, which may have several names
	dirs     map[uint64]bool   // directories, which may not
}

var le = binary.LittleEndian

func (r *reader) open() (*Inode, error) {
	if len(r.b) < inodeStart || le.Uint32(r.b[superOffset:]) != superMagic {
		return nil, fmt.Errorf("it does not begin as an image does")
	}
	s := r.b[superOffset:]
	if bits, incompat := s[12], le.Uint32(s[80:]); bits != 12 || incompat&^(incompatChunkedFile|incompatDeviceTable) != 0 {
		return nil, fmt.Errorf("blocks of 2^%d bytes, features %#x", bits, incompat)
	}
	r.epoch, r.nsec = int64(le.Uint64(s[24:])), le.Uint32(s[32:])
	root := uint64(le.Uint16(s[14:]))
	type step struct {
		dir  *Inode
		data []byte
	}
	top, data, err := r.inode(root)
	if err != nil {
		return nil, err
	}
	if !top.IsDir() {
		return nil, fmt.Errorf("the root is no directory")
	}
	r.dirs[root] = true
	for stack := []step{{top, data}}; len(stack) > 0; {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		err := r.entries(s.data, func(name string, nid uint64) error {
			if n := len(s.dir.Entries); n > 0 && s.dir.Entries[n-1].Name >= name {
				return fmt.Errorf("entries %.80q and %.80q are not in order", s.dir.Entries[n-1].Name, name)
			}
			if r.dirs[nid] {
				return fmt.Errorf("directory %.80q has two names", name)
			}
			i, data := r.seen[nid], []byte(nil)
			if i == nil {
				var err error
				if i, data, err = r.inode(nid); err != nil {
					return fmt.Errorf("%.80q: %w", name, err)
				}
				if i.IsDir() {
					r.dirs[nid] = true
					stack = append(stack, step{i, data})
				} else {
					r.seen[nid] = i
				}
			}
			s.dir.Entries = append(s.dir.Entries, Dirent{Name: name, Inode: i})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return top, nil
}

// at returns n bytes at an offset.
func (r *reader) at(off uint64, n uint64) ([]byte, error) {
	if size := uint64(len(r.b)); off > size || n > size-off {
		return nil, fmt.Errorf("%d bytes at %d of %d", n, off, size)
	}
	return r.b[off : off+n], nil
}

// inode reads an inode without its entries; data is what a directory holds.
func (r *reader) inode(nid uint64) (i *Inode, data []byte, err error) {
	if nid > math.MaxUint64/slotSize {
		return nil, nil, fmt.Errorf("inode %d", nid)
	}
	off := nid * slotSize
	h, err := r.at(off, compactSize)
	if err != nil {
		return nil, nil, err
	}
	format, mode := le.Uint16(h), uint32(le.Uint16(h[4:]))
	size, union, head := uint64(le.Uint32(h[8:])), le.Uint32(h[16:]), uint64(compactSize)
	i = &Inode{Mode: mode, Mtime: r.epoch, MtimeNsec: r.nsec}
	if format&1 == 0 {
		i.UID, i.GID = uint32(le.Uint16(h[24:])), uint32(le.Uint16(h[26:]))
	} else {
		if h, err = r.at(off, extendedSize); err != nil {
			return nil, nil, err
		}
		size, head = le.Uint64(h[8:]), extendedSize
		i.UID, i.GID = le.Uint32(h[24:]), le.Uint32(h[28:])
		i.Mtime, i.MtimeNsec = int64(le.Uint64(h[32:])), le.Uint32(h[40:])
	}
	if i.MtimeNsec > 999_999_999 {
		return nil, nil, fmt.Errorf("time with %d nanoseconds", i.MtimeNsec)
	}
	off += head
	if n := le.Uint16(h[2:]); n > 0 {
		body, err := r.at(off, xattrHeaderSize+4*uint64(n-1))
		if err != nil {
			return nil, nil, err
		}
		if i.Xattrs, err = readXattrs(body); err != nil {
			return nil, nil, err
		}
		off += uint64(len(body))
	}
	layout := format >> 1 & 7
	switch mode & TypeMask {
	case TypeRegular:
		if size > MaxFileSize {
			return nil, nil, fmt.Errorf("a file of %d bytes", size)
		}
		i.Size = int64(size)
		if size > 0 && (layout != layoutChunk || union&^0x1f != chunkFormatIndexes) {
			return nil, nil, fmt.Errorf("file data of another kind (%d, %#x)", layout, union)
		}
		if size > 0 {
			err = r.extents(i, off, uint8(union&0x1f))
		}
		return i, nil, err
	case TypeDir, TypeSymlink:
		if data, err = r.data(size, union, off, layout); err != nil {
			return nil, nil, err
		}
		if i.IsDir() {
			return i, data, nil
		}
		if i.Target = string(data); len(data) == 0 || len(data) > MaxTargetLen || strings.IndexByte(i.Target, 0) >= 0 {
			return nil, nil, fmt.Errorf("a symbolic link to a name of %d bytes", len(data))
		}
	case TypeChar, TypeBlock:
		i.Major, i.Minor = union>>8&0xfff, union&0xff|union>>12&^0xff
	case TypeFifo, TypeSocket:
	default:
		return nil, nil, fmt.Errorf("mode %#o", mode)
	}
	return i, nil, nil
}

// data returns what a directory or symbolic link holds: whole blocks elsewhere, and a tail behind the inode.
func (r *reader) data(size uint64, block uint32, tail uint64, layout uint16) ([]byte, error) {
	switch layout {
	case layoutPlain:
		return r.at(uint64(block)*BlockSize, size)
	case layoutInline:
		outside := size / BlockSize * BlockSize
		if outside > uint64(len(r.b)) {
			return nil, fmt.Errorf("data of %d bytes", size)
		}
		rest, err := r.at(tail, size-outside)
		if err != nil || outside == 0 {
			return rest, err
		}
		first, err := r.at(uint64(block)*BlockSize, outside)
		if err != nil {
			return nil, err
		}
		return append(append(make([]byte, 0, size), first...), rest...), nil
	}
	return nil, fmt.Errorf("data layout %d", layout)
}

// extents reads the chunk indexes of a file.
func (r *reader) extents(i *Inode, off uint64, bits uint8) error {
	chunk := int64(BlockSize) << bits
	count := indexes(i.Size, bits)
	if chunk <= 0 || count > maxIndexes {
		return fmt.Errorf("a file of %d chunks of 2^%d blocks", count, bits)
	}
	b, err := r.at((off+chunkIndexSize-1)/chunkIndexSize*chunkIndexSize, uint64(count)*chunkIndexSize)
	if err != nil {
		return err
	}
	for at := int64(0); at < i.Size; at, b = at+chunk, b[chunkIndexSize:] {
		block := le.Uint32(b[4:])
		if block == nullBlock {
			continue
		}
		e := Extent{Offset: at, Length: min(chunk, i.Size-at), Blob: int64(block) * BlockSize}
		if device := le.Uint16(b[2:]); device != blobDevice || e.Blob+e.Length > r.dataSize {
			return fmt.Errorf("data at %d of device %d, whose size is %d", e.Blob, device, r.dataSize)
		}
		if n := len(i.Extents) - 1; n >= 0 && i.Extents[n].Offset+i.Extents[n].Length == at && i.Extents[n].Blob+i.Extents[n].Length == e.Blob {
			i.Extents[n].Length += e.Length
			continue
		}
		i.Extents = append(i.Extents, e)
	}
	return nil
}

// entries yields what a directory's data holds, but for "." and "..".
func (r *reader) entries(data []byte, yield func(name string, nid uint64) error) error {
	for len(data) > 0 {
		block := data[:min(BlockSize, len(data))]
		data = data[len(block):]
		if len(block) < direntSize {
			return fmt.Errorf("a directory's block of %d bytes", len(block))
		}
		end := int(le.Uint16(block[8:]))
		if end < direntSize || end%direntSize != 0 || end > len(block) {
			return fmt.Errorf("a directory's names begin at %d", end)
		}
		for at := 0; at < end; at += direntSize {
			from, to := int(le.Uint16(block[at+8:])), len(block)
			if at+direntSize < end {
				to = int(le.Uint16(block[at+direntSize+8:]))
			}
			if from < end || from > to || to > len(block) {
				return fmt.Errorf("a name from %d to %d of a directory's block", from, to)
			}
			name := string(block[from:to])
			if at+direntSize >= end {
				name, _, _ = strings.Cut(name, "\x00") // the last one may be padded
			}
			if name == "." || name == ".." {
				continue
			}
			if err := checkName(name); err != nil {
				return err
			}
			if r.names++; r.names > len(r.b)/direntSize {
				return fmt.Errorf("more names than it has room for")
			}
			if err := yield(name, le.Uint64(block[at:])); err != nil {
				return err
			}
		}
	}
	return nil
}

// readXattrs reads the body of an inode's attributes.
func readXattrs(b []byte) ([]Xattr, error) {
	if b[4] != 0 {
		return nil, fmt.Errorf("shared attributes")
	}
	var out []Xattr
	for b = b[xattrHeaderSize:]; len(b) > 0; {
		if len(b) < xattrEntrySize {
			return nil, fmt.Errorf("an attribute of %d bytes", len(b))
		}
		nameLen, index, valueLen := int(b[0]), b[1], int(le.Uint16(b[2:]))
		size := (xattrEntrySize + nameLen + valueLen + 3) &^ 3
		if size > len(b) {
			return nil, fmt.Errorf("an attribute of %d bytes in %d", size, len(b))
		}
		prefix := ""
		for _, p := range xattrPrefixes {
			if p.index == index {
				prefix = p.prefix
			}
		}
		if prefix == "" {
			return nil, fmt.Errorf("an attribute of kind %d", index)
		}
		b2 := b[xattrEntrySize:]
		out = append(out, Xattr{Name: prefix + string(b2[:nameLen]), Value: string(b2[nameLen : nameLen+valueLen])})
		b = b[size:]
	}
	return out, CheckXattrs(out)
}

// Opaque tells whether a directory hides what lower layers have at its place.
func (i *Inode) Opaque() bool {
	for _, x := range i.Xattrs {
		if x.Name == OpaqueXattr {
			return x.Value == "y"
		}
	}
	return false
}
