package erofs

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// layout assigns every inode and every directory block its place.
type layout struct {
	opts   Options
	inodes []*Inode // in the order of their offsets
	dirs   []*Inode // in the order of their blocks
	parent map[*Inode]*Inode
	cursor int64 // next free byte of the inode area
	blocks int64 // blocks of the whole image
	// Compact inodes have no time of their own: they get this one, the most frequent of the tree.
	epoch     int64
	epochNsec uint32
}

func alignUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// plan lays out the tree below root: inodes first, those of one directory together, then directory blocks.
func plan(root *Inode, opts Options) (*layout, error) {
	if root == nil || !root.IsDir() {
		return nil, fmt.Errorf("erofs: root: %w: is not a directory", ErrInvalid)
	}
	l := &layout{opts: opts, parent: map[*Inode]*Inode{root: root}, cursor: inodeStart}
	if err := l.walk(root); err != nil {
		return nil, err
	}
	l.chooseEpoch()
	for n, i := range l.inodes {
		i.place.ino = uint32(n + 1)
		if err := l.put(i); err != nil {
			return nil, err
		}
	}
	next := alignUp(l.cursor, BlockSize) / BlockSize
	for _, i := range l.inodes {
		n := i.place.outside()
		if n == 0 {
			continue
		}
		i.place.blocks = next
		next += n
		l.dirs = append(l.dirs, i)
	}
	if next > math.MaxUint32-1 {
		return nil, fmt.Errorf("erofs: %w: metadata of %d blocks", ErrTooLarge, next)
	}
	l.blocks = next
	return l, nil
}

// outside returns how many whole blocks lie outside the inode (directories and long symbolic links).
func (p *place) outside() int64 {
	switch p.layout {
	case layoutInline:
		return p.size / BlockSize
	case layoutPlain:
		return alignUp(p.size, BlockSize) / BlockSize
	}
	return 0
}

// walk lists the inodes in layout order, counts links, and checks what they hold.
func (l *layout) walk(root *Inode) error {
	type step struct {
		dir  *Inode
		path string
	}
	root.place = place{by: l, nlink: 2}
	l.inodes = append(l.inodes, root)
	if err := l.check(root, "/"); err != nil {
		return err
	}
	stack := []step{{root, ""}}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		below := len(stack)
		for n, e := range s.dir.Entries {
			path := s.path + "/" + e.Name
			if err := checkName(e.Name); err != nil {
				return fmt.Errorf("erofs: %q: %w", path, err)
			}
			if n > 0 && s.dir.Entries[n-1].Name >= e.Name {
				return fmt.Errorf("erofs: %q: %w: entries are not sorted or not unique", path, ErrInvalid)
			}
			i := e.Inode
			if i.IsDir() {
				if l.parent[i] != nil {
					return fmt.Errorf("erofs: %q: %w: a directory with two names", path, ErrInvalid)
				}
				l.parent[i] = s.dir
				s.dir.place.nlink++
				stack = append(stack, step{i, path})
			} else if i.place.by == l {
				i.place.nlink++
				if i.place.nlink == 0 {
					return fmt.Errorf("erofs: %q: %w: too many links", path, ErrTooLarge)
				}
				continue
			}
			i.place = place{by: l, nlink: 1}
			if i.IsDir() {
				i.place.nlink = 2
			}
			if err := l.check(i, path); err != nil {
				return err
			}
			l.inodes = append(l.inodes, i)
		}
		slices.Reverse(stack[below:]) // first name on top
	}
	if len(l.inodes) > math.MaxUint32-1 {
		return fmt.Errorf("erofs: %w: %d inodes", ErrTooLarge, len(l.inodes))
	}
	return nil
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > MaxNameLen || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%w: name must have 1 to %d bytes, no slash and no NUL, and not be \".\" or \"..\"", ErrInvalid, MaxNameLen)
	}
	return nil
}

// check validates an inode by itself and works out the size of its data and attributes.
func (l *layout) check(i *Inode, path string) error {
	fail := func(kind error, format string, args ...any) error {
		return fmt.Errorf("erofs: %q: %w: %s", path, kind, fmt.Sprintf(format, args...))
	}
	if i.MtimeNsec > 999_999_999 {
		return fail(ErrInvalid, "nanoseconds out of range")
	}
	if i.Mode&^uint32(TypeMask|0o7777) != 0 {
		return fail(ErrInvalid, "mode %#o", i.Mode)
	}
	n, err := xattrSize(i.Xattrs)
	if err != nil {
		return fmt.Errorf("erofs: %q: %w", path, err)
	}
	i.place.xattr = n
	switch i.Mode & TypeMask {
	case TypeRegular:
		if i.Size < 0 || i.Size > MaxFileSize {
			return fail(ErrTooLarge, "size %d", i.Size)
		}
		bitsLog, err := chunkBits(i)
		if err != nil {
			return fail(ErrInvalid, "%v", err)
		}
		i.place.chunk = bitsLog
	case TypeDir:
		i.place.size = dirSize(i)
	case TypeSymlink:
		if len(i.Target) == 0 || len(i.Target) > MaxTargetLen || strings.IndexByte(i.Target, 0) >= 0 {
			return fail(ErrInvalid, "symbolic link target must have 1 to %d bytes and no NUL", MaxTargetLen)
		}
		i.place.size = int64(len(i.Target))
	case TypeChar, TypeBlock:
		if !i.IsWhiteout() && !l.opts.Devices {
			return fail(ErrInvalid, "device nodes are not allowed in this image")
		}
		if i.Major >= 1<<12 || i.Minor >= 1<<20 {
			return fail(ErrInvalid, "device number %d:%d", i.Major, i.Minor)
		}
	case TypeFifo, TypeSocket:
	default:
		return fail(ErrInvalid, "unknown file type %#o", i.Mode&TypeMask)
	}
	return nil
}

// chunkBits returns log2 of the largest chunk, in blocks, of which each is all data, contiguous in the blob, or
// all hole. A file without holes gets one chunk.
func chunkBits(i *Inode) (uint8, error) {
	if i.Size == 0 {
		if len(i.Extents) > 0 {
			return 0, fmt.Errorf("an empty file with data")
		}
		return 0, nil
	}
	var cuts uint64 // all places, in the file, where the data changes
	end, blob := int64(0), int64(-1)
	for _, e := range i.Extents {
		last := e.Offset+e.Length == i.Size
		switch {
		case e.Offset < end, e.Length <= 0, e.Blob < 0, e.Offset > i.Size-e.Length,
			e.Offset%BlockSize != 0, e.Blob%BlockSize != 0, !last && e.Length%BlockSize != 0:
			return 0, fmt.Errorf("bad extent %+v in a file of %d bytes", e, i.Size)
		case (e.Blob+e.Length)/BlockSize >= nullBlock:
			return 0, fmt.Errorf("extent %+v lies beyond what a block address can say", e)
		}
		if e.Offset != end || e.Blob != blob {
			cuts |= uint64(e.Offset)
			cuts |= uint64(end)
		}
		end, blob = e.Offset+e.Length, e.Blob+e.Length
	}
	if end != i.Size {
		cuts |= uint64(end)
	}
	whole := uint8(bits.Len64(uint64(i.Size-1) / BlockSize)) // one chunk holds the file
	if cuts == 0 {
		return whole, nil
	}
	chunk := min(whole, uint8(bits.TrailingZeros64(cuts/BlockSize)))
	if indexes(i.Size, chunk) > maxIndexes {
		return 0, fmt.Errorf("holes too fine: more than %d chunks", maxIndexes)
	}
	return chunk, nil
}

// indexes returns how many chunks of 2^chunk blocks hold size bytes.
func indexes(size int64, chunk uint8) int64 {
	if size == 0 {
		return 0
	}
	return (size-1)/(BlockSize<<chunk) + 1
}

// chooseEpoch picks the modification time that lets the most inodes do without one of their own.
func (l *layout) chooseEpoch() {
	type stamp struct {
		sec  int64
		nsec uint32
	}
	count := map[stamp]int{}
	for _, i := range l.inodes {
		if compactable(i) {
			count[stamp{i.Mtime, i.MtimeNsec}]++
		}
	}
	var best stamp
	most := 0
	for s, n := range count {
		if n > most || n == most && (cmp.Or(cmp.Compare(s.sec, best.sec), cmp.Compare(s.nsec, best.nsec)) < 0) {
			best, most = s, n
		}
	}
	l.epoch, l.epochNsec = best.sec, best.nsec
}

// compactable tells whether all but the time of i fits into the short form.
func compactable(i *Inode) bool {
	return i.UID <= math.MaxUint16 && i.GID <= math.MaxUint16 && i.place.nlink <= math.MaxUint16 &&
		i.Size <= math.MaxUint32 && i.place.size <= math.MaxUint32
}

func (p *place) inodeSize() int64 {
	if p.compact {
		return compactSize
	}
	return extendedSize
}

// put gives i its offset and layout, and moves the cursor behind it.
func (l *layout) put(i *Inode) error {
	p := &i.place
	p.compact = compactable(i) && i.Mtime == l.epoch && i.MtimeNsec == l.epochNsec
	l.cursor = alignUp(l.cursor, slotSize)
	head := p.inodeSize() + int64(p.xattr)
	switch i.Mode & TypeMask {
	case TypeRegular:
		p.layout = layoutPlain
		if n := indexes(i.Size, p.chunk); n > 0 {
			p.layout = layoutChunk
			head = alignUp(head, chunkIndexSize) + n*chunkIndexSize
		}
	case TypeDir, TypeSymlink:
		// What the inode carries must lie in one block with it. A gap before it is taken when it is smaller
		// than what a block of its own would waste.
		p.layout = layoutPlain
		tail := p.size % BlockSize
		gap := int64(0)
		if l.cursor%BlockSize+head+tail > BlockSize {
			gap = BlockSize - l.cursor%BlockSize
		}
		if tail > 0 && head+tail <= BlockSize && gap <= BlockSize-tail {
			p.layout = layoutInline
			l.cursor += gap
			head += tail
		}
	default:
		p.layout = layoutPlain
	}
	p.offset = l.cursor
	l.cursor += head
	return nil
}

// nid is the number by which directory entries name i.
func (i *Inode) nid() uint64 { return uint64(i.place.offset / slotSize) }
