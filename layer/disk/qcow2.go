package disk

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/opendsec/dsec/sandbox"
)

// The format is described in docs/interop/qcow2.txt of QEMU. Numbers are big-endian.
const (
	qcowMagic = "QFI\xfb"

	headerV2   = 72
	headerV3   = 104
	minCluster = 9 // bits
	maxCluster = 21

	featureDirty       = 1 << 0 // counters of use are to be made anew; what is mapped where is right
	featureCorrupt     = 1 << 1
	featureDataFile    = 1 << 2
	featureCompression = 1 << 3
	featureExtended    = 1 << 4 // L2 entries of 16 bytes

	offsetMask     = 0x00fffffffffffe00
	flagCompressed = 1 << 62
	flagZero       = 1 << 0
)

// qcow2 is an image whose tables are to be followed.
type qcow2 struct {
	r        io.ReaderAt
	length   int64 // of the file
	size     int64 // of the disk
	version  uint32
	bits     uint32 // of a cluster
	l1       []uint64
	zstd     bool
	unpacker *zstd.Decoder
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: it is damaged or cut off: %s", sandbox.ErrInvalid, fmt.Sprintf(format, args...))
}

// openQcow2 checks header and first table; the rest is checked as it is read.
func openQcow2(r io.ReaderAt, length int64) (*qcow2, error) {
	h := make([]byte, 112)
	n, err := r.ReadAt(h, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if n < headerV2 {
		return nil, damaged("its header ends after %d bytes", n)
	}
	q := &qcow2{r: r, length: length, version: be32(h[4:]), bits: be32(h[20:])}
	if q.version != 2 && q.version != 3 {
		return nil, fmt.Errorf("%w: version %d: convert it (qemu-img convert -O qcow2)", sandbox.ErrUnsupported, q.version)
	}
	if be64(h[8:]) != 0 || be32(h[16:]) != 0 {
		return nil, fmt.Errorf("%w: it lies on a backing file, which is not part of it: make it whole (qemu-img convert -O qcow2)", sandbox.ErrInvalid)
	}
	if m := be32(h[32:]); m != 0 {
		return nil, fmt.Errorf("%w: it is encrypted (method %d): decrypt it first", sandbox.ErrInvalid, m)
	}
	if q.version == 3 {
		if err := q.features(h[:n]); err != nil {
			return nil, err
		}
	}
	if q.bits < minCluster || q.bits > maxCluster {
		return nil, damaged("clusters of 2^%d bytes", q.bits)
	}
	size := be64(h[24:])
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if size == 0 || size%SectorSize != 0 {
		return nil, fmt.Errorf("%w: a disk of %d bytes is no whole number of sectors of %d", sandbox.ErrInvalid, size, SectorSize)
	}
	q.size = int64(size)
	return q, q.readL1(be32(h[36:]), be64(h[40:]))
}

// features refuses what the reader does not understand.
func (q *qcow2) features(h []byte) error {
	if len(h) < headerV3 {
		return damaged("its header ends after %d bytes", len(h))
	}
	f := be64(h[72:])
	switch {
	case f&featureDataFile != 0:
		return fmt.Errorf("%w: its data lies in another file, which is not part of it: make it whole (qemu-img convert -O qcow2)", sandbox.ErrInvalid)
	case f&featureCorrupt != 0:
		return fmt.Errorf("%w: it is marked as corrupt: repair it first (qemu-img check -r all)", sandbox.ErrInvalid)
	case f&^uint64(featureDirty|featureCompression) != 0:
		return fmt.Errorf("%w: features %#x: convert it (qemu-img convert -O qcow2)", sandbox.ErrUnsupported, f)
	}
	if f&featureCompression != 0 {
		if len(h) <= headerV3 || be32(h[100:]) <= headerV3 {
			return damaged("it names no kind of compression")
		}
		switch h[headerV3] {
		case 0:
		case 1:
			q.zstd = true
		default:
			return fmt.Errorf("%w: compression of kind %d", sandbox.ErrUnsupported, h[headerV3])
		}
	}
	return nil
}

func (q *qcow2) cluster() int64 { return 1 << q.bits }

// perL2 is how many bytes of the disk one table of the second level is about.
func (q *qcow2) perL2() int64 { return q.cluster() / 8 * q.cluster() }

// readL1 reads the table of the first level.
func (q *qcow2) readL1(entries uint32, at uint64) error {
	want := (q.size + q.perL2() - 1) / q.perL2()
	if int64(entries) < want {
		return fmt.Errorf("%w: it says that its disk has %d bytes, and its tables are for %d at most", sandbox.ErrInvalid, q.size, int64(entries)*q.perL2())
	}
	b, err := q.at("first table", at, want*8)
	if err != nil {
		return err
	}
	q.l1 = make([]uint64, want)
	for i := range q.l1 {
		q.l1[i] = be64(b[8*i:])
	}
	return nil
}

// at reads n bytes of the file, all of which must be there and begin a cluster.
func (q *qcow2) at(what string, off uint64, n int64) ([]byte, error) {
	if off == 0 || off%uint64(q.cluster()) != 0 || off >= uint64(q.length) || n > q.length-int64(off) {
		return nil, damaged("%s at byte %d, of a file of %d", what, off, q.length)
	}
	b := make([]byte, n)
	if _, err := q.r.ReadAt(b, int64(off)); err != nil {
		return nil, damaged("%s at byte %d: %v", what, off, err)
	}
	return b, nil
}

// qcowReader reads the disk from its beginning.
type qcowReader struct {
	q    *qcow2
	pos  int64
	l2   []byte // the table for pos; nil = there is none
	l2at int64  // its number, plus 1
	data []byte // of the cluster at pos, unread
	zero int64  // bytes of zeros ahead of that
}

// Read implements io.Reader.
func (r *qcowReader) Read(p []byte) (int, error) {
	for r.zero == 0 && len(r.data) == 0 {
		if r.pos >= r.q.size {
			return 0, io.EOF
		}
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	if r.zero > 0 {
		n := int(min(int64(len(p)), r.zero))
		clear(p[:n])
		r.zero -= int64(n)
		return n, nil
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// next looks the cluster at pos up and moves on.
func (r *qcowReader) next() error {
	q := r.q
	table := r.pos / q.perL2()
	if r.l2at != table+1 {
		r.l2, r.l2at = nil, table+1
		if off := q.l1[table] & offsetMask; off != 0 {
			var err error
			if r.l2, err = q.at("second table", off, q.cluster()); err != nil {
				return err
			}
		}
	}
	if r.l2 == nil {
		r.skip(q.perL2() - r.pos%q.perL2())
		return nil
	}
	entry := be64(r.l2[r.pos%q.perL2()/q.cluster()*8:])
	var err error
	switch {
	case entry&flagCompressed != 0:
		r.data, err = q.unpack(entry)
	case q.version == 3 && entry&flagZero != 0, entry&offsetMask == 0:
		r.skip(q.cluster())
		return nil
	default:
		r.data, err = q.at("data", entry&offsetMask, q.cluster())
	}
	if err != nil {
		return err
	}
	r.data = r.data[:min(int64(len(r.data)), q.size-r.pos)] // the last cluster may be longer than the disk
	r.pos += q.cluster()
	return nil
}

// skip takes the next n bytes, as far as there are such, for zeros.
func (r *qcowReader) skip(n int64) {
	r.zero = min(n, r.q.size-r.pos)
	r.pos += n
}

// unpack reads a compressed cluster. Its last sector may lie partly behind the file's end.
func (q *qcow2) unpack(entry uint64) ([]byte, error) {
	x := 62 - (q.bits - 8)
	off := entry & (1<<x - 1)
	n := (int64(entry&(flagCompressed-1)>>x)+1)*SectorSize - int64(off%SectorSize)
	if off == 0 || off >= uint64(q.length) {
		return nil, damaged("compressed data at byte %d, of a file of %d", off, q.length)
	}
	src := io.NewSectionReader(q.r, int64(off), min(n, q.length-int64(off)))
	out := make([]byte, q.cluster())
	var err error
	if q.zstd {
		err = q.unzstd(out, src)
	} else {
		z := flate.NewReader(src)
		_, err = io.ReadFull(z, out)
	}
	if err != nil {
		return nil, damaged("compressed data at byte %d: %v", off, err)
	}
	return out, nil
}

func (q *qcow2) unzstd(out []byte, src io.Reader) error {
	var err error
	if q.unpacker == nil {
		// What comes after the frame is not ours to decode: one goroutine, no reading ahead.
		q.unpacker, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return err
		}
	}
	b, err := io.ReadAll(src)
	if err != nil {
		return err
	}
	if err := q.unpacker.Reset(bytes.NewReader(b)); err != nil {
		return err
	}
	_, err = io.ReadFull(q.unpacker, out)
	return err
}
