package tree

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a zstd stream may ask for, bytes.
const maxWindow = 128 << 20

// Decompress returns the plain content of r, which may be compressed with gzip or zstd; its first bytes tell.
// Other compressions are refused with sandbox.ErrInvalid. Close must be called; it does not close r.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	src := &source{r: r}
	br := bufio.NewReaderSize(src, 256<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	switch {
	case len(head) == 0:
		return nil, fmt.Errorf("read archive: %w: it is empty", errInvalid)
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("read archive: %w: gzip: %w", errInvalid, err)
		}
		return readAhead(&plainReader{z, src}, func() { z.Close() }), nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippable(head):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("read archive: %w: zstd: %w", errInvalid, err)
		}
		return readAhead(&plainReader{z, src}, z.Close), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, fmt.Errorf("read archive: %w: xz is not supported; use gzip or zstd", errInvalid)
	case bytes.HasPrefix(head, []byte("BZh")):
		return nil, fmt.Errorf("read archive: %w: bzip2 is not supported; use gzip or zstd", errInvalid)
	}
	return io.NopCloser(br), nil
}

// isSkippable tells whether a zstd stream begins with a frame of user data.
func isSkippable(head []byte) bool {
	return len(head) >= 4 && head[0]&0xf0 == 0x50 && head[1] == 0x2a && head[2] == 0x4d && head[3] == 0x18
}

// damage is an error of a decompressor, as against one of its source.
type damage struct{ error }

func (d damage) Unwrap() error { return d.error }

func isDamage(err error) bool {
	var d damage
	return errors.As(err, &d)
}

// source remembers why reading the compressed bytes ended.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// plainReader tells errors of the source from those of the decompressor.
type plainReader struct {
	r   io.Reader
	src *source
}

func (p *plainReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case p.src.err != nil && p.src.err != io.EOF:
		return n, p.src.err
	}
	return n, damage{err}
}
