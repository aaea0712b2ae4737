package erofs

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Kinds of error.
var (
	ErrInvalid  = errors.New("invalid tree")
	ErrTooLarge = errors.New("too large for an image")
)

// Options of an image.
type Options struct {
	UUID     [16]byte // tells mounted images apart; a function of the content keeps images reproducible
	DataSize int64    // bytes of the blob, a multiple of BlockSize; 0 = the image has no second device
	Devices  bool     // allow device nodes other than whiteouts
}

// Summary says what was written.
type Summary struct {
	Size   int64 // bytes of the image, a multiple of BlockSize
	Inodes int64
}

// Write writes the image of the tree below root. Extents must lie within opts.DataSize. Errors: ErrInvalid,
// ErrTooLarge, or the writer's; the output is then worthless.
func Write(w io.Writer, root *Inode, opts Options) (Summary, error) {
	if opts.DataSize < 0 || opts.DataSize%BlockSize != 0 || opts.DataSize/BlockSize >= nullBlock {
		return Summary{}, fmt.Errorf("erofs: %w: data of %d bytes is not a number of blocks", ErrInvalid, opts.DataSize)
	}
	l, err := plan(root, opts)
	if err != nil {
		return Summary{}, err
	}
	out := &writer{w: bufio.NewWriterSize(w, 1<<20)}
	out.write(l.super(root))
	var buf []byte
	for _, i := range l.inodes {
		out.pad(i.place.offset)
		if buf, err = l.appendInode(buf[:0], i); err != nil {
			return Summary{}, err
		}
		out.write(buf)
	}
	for _, i := range l.dirs {
		out.pad(i.place.blocks * BlockSize)
		data := l.appendData(buf[:0], i)
		out.write(data[:min(int64(len(data)), i.place.outside()*BlockSize)])
		buf = data
	}
	out.pad(l.blocks * BlockSize)
	if err := out.flush(); err != nil {
		return Summary{}, fmt.Errorf("erofs: write image: %w", err)
	}
	return Summary{Size: l.blocks * BlockSize, Inodes: int64(len(l.inodes))}, nil
}

// super encodes the first block: superblock and device table.
func (l *layout) super(root *Inode) []byte {
	b := make([]byte, BlockSize)
	s := b[superOffset:]
	incompat := uint32(incompatChunkedFile)
	if l.opts.DataSize > 0 {
		incompat |= incompatDeviceTable
		le.PutUint16(s[86:], 1)
		le.PutUint16(s[88:], deviceSlotOffset/deviceSlotSize)
		d := b[deviceSlotOffset:]
		le.PutUint32(d[64:], uint32(l.opts.DataSize/BlockSize))
		if l.blocks+l.opts.DataSize/BlockSize < nullBlock {
			le.PutUint32(d[68:], uint32(l.blocks)) // its address when appended to the image
		}
	}
	le.PutUint32(s[0:], superMagic)
	le.PutUint32(s[8:], compatChecksum|compatMtime)
	s[12] = 12 // log2 of the block size
	le.PutUint16(s[14:], uint16(root.nid()))
	le.PutUint64(s[16:], uint64(len(l.inodes)))
	le.PutUint64(s[24:], uint64(l.epoch))
	le.PutUint32(s[32:], l.epochNsec)
	le.PutUint32(s[36:], uint32(l.blocks))
	le.PutUint32(s[80:], incompat)
	SetUUID(b, l.opts.UUID)
	return b
}

// SetUUID changes the UUID in an image's first BlockSize bytes, and the checksum with it.
func SetUUID(block []byte, uuid [16]byte) {
	s := block[superOffset:BlockSize]
	copy(s[48:64], uuid[:])
	le.PutUint32(s[4:], 0)
	// The kernel's CRC has no final inversion.
	le.PutUint32(s[4:], ^crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)))
}

// appendInode appends an inode with its attributes and what follows it.
func (l *layout) appendInode(b []byte, i *Inode) ([]byte, error) {
	p := &i.place
	var size int64
	var union uint32
	switch i.Mode & TypeMask {
	case TypeRegular:
		size = i.Size
		if p.layout == layoutChunk {
			union = uint32(p.chunk) | chunkFormatIndexes
		}
	case TypeDir, TypeSymlink:
		size = p.size
		union = uint32(p.blocks)
	case TypeChar, TypeBlock:
		union = i.Minor&0xff | i.Major<<8 | (i.Minor&^0xff)<<12
	}
	format := uint16(p.layout) << 1
	if p.compact {
		b = le.AppendUint16(b, format)
		b = le.AppendUint16(b, xattrCount(p.xattr))
		b = le.AppendUint16(b, uint16(i.Mode))
		b = le.AppendUint16(b, uint16(p.nlink))
		b = le.AppendUint32(b, uint32(size))
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, union)
		b = le.AppendUint32(b, p.ino)
		b = le.AppendUint16(b, uint16(i.UID))
		b = le.AppendUint16(b, uint16(i.GID))
		b = le.AppendUint32(b, 0)
	} else {
		b = le.AppendUint16(b, format|1)
		b = le.AppendUint16(b, xattrCount(p.xattr))
		b = le.AppendUint16(b, uint16(i.Mode))
		b = le.AppendUint16(b, 0)
		b = le.AppendUint64(b, uint64(size))
		b = le.AppendUint32(b, union)
		b = le.AppendUint32(b, p.ino)
		b = le.AppendUint32(b, i.UID)
		b = le.AppendUint32(b, i.GID)
		b = le.AppendUint64(b, uint64(i.Mtime))
		b = le.AppendUint32(b, i.MtimeNsec)
		b = le.AppendUint32(b, p.nlink)
		b = append(b, make([]byte, 16)...)
	}
	b = appendXattrs(b, i.Xattrs)
	switch p.layout {
	case layoutChunk:
		return l.appendIndexes(b, i)
	case layoutInline:
		data := l.appendData(nil, i)
		b = append(b, data[p.outside()*BlockSize:]...)
	}
	return b, nil
}

// appendData appends a directory's entries or a symbolic link's target.
func (l *layout) appendData(b []byte, i *Inode) []byte {
	if i.IsDir() {
		return appendDir(b, i, l.parent[i])
	}
	return append(b, i.Target...)
}

// appendIndexes appends where each chunk of a file lies.
func (l *layout) appendIndexes(b []byte, i *Inode) ([]byte, error) {
	for len(b)%chunkIndexSize != 0 {
		b = append(b, 0)
	}
	chunk := int64(BlockSize) << i.place.chunk
	extents := i.Extents
	for at := int64(0); at < i.Size; at += chunk {
		for len(extents) > 0 && extents[0].Offset+extents[0].Length <= at {
			extents = extents[1:]
		}
		if len(extents) == 0 || extents[0].Offset > at {
			b = le.AppendUint32(b, 0)
			b = le.AppendUint32(b, nullBlock)
			continue
		}
		e := extents[0]
		if alignUp(e.Blob+e.Length, BlockSize) > l.opts.DataSize {
			return nil, fmt.Errorf("erofs: %w: extent %+v lies outside the %d bytes of data", ErrInvalid, e, l.opts.DataSize)
		}
		b = le.AppendUint16(b, 0)
		b = le.AppendUint16(b, blobDevice)
		b = le.AppendUint32(b, uint32((e.Blob+at-e.Offset)/BlockSize))
	}
	return b, nil
}

// writer counts what it has written and remembers the first error.
type writer struct {
	w   *bufio.Writer
	at  int64
	err error
}

func (w *writer) write(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
	w.at += int64(len(b))
}

var zeros [BlockSize]byte

// pad writes zeros up to offset to.
func (w *writer) pad(to int64) {
	if to < w.at && w.err == nil {
		w.err = fmt.Errorf("layout overlaps at %d (wanted %d)", w.at, to)
	}
	for w.at < to && w.err == nil {
		w.write(zeros[:min(to-w.at, BlockSize)])
	}
}

func (w *writer) flush() error {
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}
