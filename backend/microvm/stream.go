package microvm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
)

// What a saved machine's stream is made of (docs/devel/migration in QEMU's sources): sections, each with its type, and in
// those of memory records, each a number whose lower bits are flags and whose upper ones are an address.
const (
	sectionStart  = 0x01
	sectionPart   = 0x02
	sectionEnd    = 0x03
	sectionFooter = 0x7e

	pageSize   = 4096
	pageZero   = 0x02
	pageSizes  = 0x04
	pageData   = 0x08
	pagesEnd   = 0x10
	pageSame   = 0x20 // in the block of the record before
	addressOf  = ^uint64(pageSize - 1)
	maxBlocks  = 1024
	maxPreface = 64 << 10 // bytes before the first section of memory
)

// ramStart is how the first section of memory begins after its type and number: its name, instance and version.
var ramStart = []byte("\x03ram\x00\x00\x00\x00\x00\x00\x00\x04")

var errStream = errors.New("QEMU saves a machine in a way that is not known here")

// splitter takes the pages of a machine's memory out of its stream. The rest is a stream that a machine takes whose memory
// is there already.
type splitter struct {
	r    *bufio.Reader
	out  bytes.Buffer
	size uint64 // of the memory, bytes
	ram  string // the name of its block
	page func(at int64, data []byte) error
	buf  [pageSize]byte
	in   string // the block that a record without a name is of
}

// splitState reads a stream to its end and returns it without the pages of the block of memory that has size bytes: page
// is called with each, nil for zeros.
func splitState(r io.Reader, size int64, page func(at int64, data []byte) error) ([]byte, error) {
	s := &splitter{r: bufio.NewReaderSize(r, 1<<20), size: uint64(size), page: page}
	id, err := s.preface()
	if err != nil {
		return nil, err
	}
	if err := s.blocks(); err != nil {
		return nil, err
	}
	for kind := byte(sectionStart); ; {
		if err := s.records(); err != nil {
			return nil, err
		}
		foot, err := s.keep(5)
		if err != nil || foot[0] != sectionFooter || binary.BigEndian.Uint32(foot[1:]) != id {
			return nil, s.unknown(err, "a section's end")
		}
		if kind == sectionEnd {
			break
		}
		head, err := s.keep(5)
		if err != nil || head[0] != sectionPart && head[0] != sectionEnd || binary.BigEndian.Uint32(head[1:]) != id {
			return nil, s.unknown(err, "a section")
		}
		kind = head[0]
	}
	if n, err := io.CopyN(&s.out, s.r, maxState+1); err != io.EOF || n > maxState {
		return nil, s.unknown(err, "its devices")
	}
	return s.out.Bytes(), nil
}

func (s *splitter) unknown(err error, what string) error {
	if err == nil {
		return fmt.Errorf("%w: %s", errStream, what)
	}
	return fmt.Errorf("read the machine's %s: %w", what, err)
}

// keep reads n bytes that stay in the stream.
func (s *splitter) keep(n int) ([]byte, error) {
	if s.out.Len()+n > maxState {
		return nil, errors.New("its state is too large")
	}
	at := s.out.Len()
	if _, err := io.CopyN(&s.out, s.r, int64(n)); err != nil {
		return nil, err
	}
	return s.out.Bytes()[at:], nil
}

func (s *splitter) number() (uint64, error) {
	b, err := s.keep(8)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

func (s *splitter) name() (string, error) {
	n, err := s.keep(1)
	if err != nil {
		return "", err
	}
	b, err := s.keep(int(n[0]))
	return string(b), err
}

// preface reads up to the first section of memory, and returns its number.
func (s *splitter) preface() (uint32, error) {
	for s.out.Len() < maxPreface {
		if _, err := s.keep(1); err != nil {
			return 0, s.unknown(err, "state")
		}
		b := s.out.Bytes()
		if at := len(b) - len(ramStart); at >= 5 && bytes.Equal(b[at:], ramStart) && b[at-5] == sectionStart {
			return binary.BigEndian.Uint32(b[at-4:]), nil
		}
	}
	return 0, s.unknown(nil, "no memory in it")
}

// blocks reads what blocks of memory there are.
func (s *splitter) blocks() error {
	total, err := s.number()
	if err != nil || total&^addressOf != pageSizes {
		return s.unknown(err, "sizes of memory")
	}
	total &= addressOf
	for n := 0; total > 0 && n < maxBlocks; n++ {
		name, err := s.name()
		if err != nil {
			return err
		}
		size, err := s.number()
		if err != nil || size > total {
			return s.unknown(err, "sizes of memory")
		}
		if _, err := s.number(); err != nil { // its address, because of ignoreShared
			return err
		}
		if path.Base(name) == ramName { // not a layer of the same size
			if size != s.size {
				return s.unknown(nil, "its memory is of another size")
			}
			s.ram = name
		}
		total -= size
	}
	if s.ram == "" || total > 0 {
		return s.unknown(nil, "its blocks of memory")
	}
	return nil
}

// records reads a section's records.
func (s *splitter) records() error {
	for {
		head := s.buf[:8]
		if _, err := io.ReadFull(s.r, head); err != nil {
			return s.unknown(err, "memory")
		}
		v := binary.BigEndian.Uint64(head)
		at, flags := v&addressOf, v&^addressOf
		_, _ = s.out.Write(head)
		if flags == pagesEnd {
			return nil
		}
		keepFrom := s.out.Len() - len(head)
		if flags&pageSame == 0 {
			var err error
			if s.in, err = s.name(); err != nil {
				return err
			}
		}
		size := 1
		switch flags &^ pageSame {
		case pageZero:
		case pageData:
			size = pageSize
		default:
			return s.unknown(nil, fmt.Sprintf("memory with flags %#x", flags))
		}
		if s.in != s.ram {
			if _, err := s.keep(size); err != nil {
				return s.unknown(err, "memory")
			}
			continue
		}
		s.out.Truncate(keepFrom)
		b := s.buf[:size]
		if _, err := io.ReadFull(s.r, b); err != nil {
			return s.unknown(err, "memory")
		}
		if at >= s.size || size == 1 && b[0] != 0 {
			return s.unknown(nil, "a page outside of its memory")
		}
		if size == 1 {
			b = nil
		}
		if err := s.page(int64(at), b); err != nil {
			return err
		}
	}
}
