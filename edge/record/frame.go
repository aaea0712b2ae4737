package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"google.golang.org/protobuf/proto"
)

const (
	frameEntry  = 1
	frameOutput = 2

	headerSize = 8
	maxFrame   = 8 << 20
	maxPiece   = 64 << 10 // bytes of output in one frame
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errTorn    = errors.New("torn frame")
)

// buffers lends scratch space to writers and scanners, so that an idle sandbox holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

func putBuffer(b *[]byte) {
	if cap(*b) <= 1<<20 {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// seal fills in the header of the frame that begins at b[0].
func seal(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-headerSize))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[headerSize:], castagnoli))
}

func appendEntry(b []byte, e *Entry) ([]byte, error) {
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, frameEntry)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, e)
	if err != nil {
		return nil, fmt.Errorf("encode journal entry: %w", err)
	}
	if len(b) > maxFrame {
		return nil, fmt.Errorf("journal entry of %d bytes is larger than %d", len(b), maxFrame)
	}
	seal(b)
	return b, nil
}

func appendOutput(b []byte, order, offset int64, stream Stream, data []byte) []byte {
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, frameOutput)
	b = binary.AppendUvarint(b, uint64(order))
	b = binary.AppendUvarint(b, uint64(offset))
	b = append(b, byte(stream))
	b = append(b, data...)
	seal(b)
	return b
}

// frame is one decoded frame; its bytes are valid until the next one is read.
type frame struct {
	pos, size int64 // in the file, header included
	kind      byte
	payload   []byte
}

// output decodes an output frame.
func (f *frame) output() (order, offset int64, stream Stream, data []byte, err error) {
	b := f.payload
	o, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, 0, 0, nil, errTorn
	}
	b = b[n:]
	at, n := binary.Uvarint(b)
	if n <= 0 || len(b) == n {
		return 0, 0, 0, nil, errTorn
	}
	return int64(o), int64(at), Stream(b[n]), b[n+1:], nil
}

func (f *frame) entry() (*Entry, error) {
	e := new(Entry)
	if err := proto.Unmarshal(f.payload, e); err != nil {
		return nil, fmt.Errorf("decode journal entry at %d: %w", f.pos, err)
	}
	return e, nil
}

// scanner reads frames from a file from a position on. It ends with io.EOF at limit or at a frame boundary at
// the end of the file, and with errTorn at a frame that is not whole.
type scanner struct {
	f     *os.File
	pos   int64 // of the next frame
	limit int64 // -1 = end of file
	buf   *[]byte
	data  []byte // unread part of *buf; begins at pos
	cur   frame
}

func newScanner(f *os.File, pos, limit int64) *scanner {
	return &scanner{f: f, pos: pos, limit: limit, buf: buffers.Get().(*[]byte)}
}

func (s *scanner) close() { putBuffer(s.buf) }

// fill makes at least n unread bytes available.
func (s *scanner) fill(n int) error {
	if len(s.data) >= n {
		return nil
	}
	want := max(n, 16<<10)
	if cap(*s.buf) < want {
		b := make([]byte, 0, max(want, 64<<10))
		b = append(b, s.data...)
		*s.buf = b
	} else {
		*s.buf = append((*s.buf)[:0], s.data...) // moves to the front
	}
	have := len(*s.buf)
	b := (*s.buf)[:cap(*s.buf)]
	got, err := s.f.ReadAt(b[have:], s.pos+int64(have))
	*s.buf = b[:have+got]
	s.data = *s.buf
	if len(s.data) >= n {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		if len(s.data) == 0 {
			return io.EOF
		}
		return errTorn
	}
	return err
}

// next reads the next frame. With skim, the payloads of output frames are not checked.
func (s *scanner) next(skim bool) (*frame, error) {
	if s.limit >= 0 && s.pos >= s.limit {
		return nil, io.EOF
	}
	if err := s.fill(headerSize); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint32(s.data)
	if length < 2 || length > maxFrame {
		return nil, errTorn
	}
	size := headerSize + int(length)
	if err := s.fill(size); err != nil {
		if errors.Is(err, io.EOF) {
			err = errTorn
		}
		return nil, err
	}
	body := s.data[headerSize:size]
	if !skim || body[0] != frameOutput {
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(s.data[4:]) {
			return nil, errTorn
		}
	}
	s.cur = frame{pos: s.pos, size: int64(size), kind: body[0], payload: body[1:]}
	s.pos += int64(size)
	s.data = s.data[size:]
	return &s.cur, nil
}
