package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/zeebo/blake3"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
)

const (
	segmentSize = 4 * layer.ChunkSize // what is handed to the disk at once
	smallSize   = 1 << 20             // files up to this size are looked at whole, and stored once
	holeUnit    = 64 << 10            // smallest hole
	maxWindows  = 1 << 16             // windows that a file is cut into to look for holes
	spaceEvery  = 64 << 20            // bytes between two looks at the free space
)

// spool writes file contents to the data blob. A goroutine hashes and writes; close waits for it.
type spool struct {
	file    *os.File
	minFree int64
	size    int64 // bytes accepted, what the goroutine has not written yet included
	checked int64 // size at the last look at the free space

	segment []byte // being filled
	free    chan []byte
	full    chan []byte
	done    chan struct{}
	chunks  layer.Chunker // the goroutine's until done

	mu  sync.Mutex
	err error // of the goroutine

	small  []byte // content of one small file
	piece  []byte // part of a large one
	stored map[[32]byte][]erofs.Extent
	shared int64
}

func newSpool(f *os.File, minFree int64) (*spool, error) {
	s := &spool{
		file: f, minFree: minFree, checked: -spaceEvery,
		free: make(chan []byte, 4), full: make(chan []byte, 4), done: make(chan struct{}),
		small: make([]byte, smallSize), piece: make([]byte, holeUnit), stored: map[[32]byte][]erofs.Extent{},
	}
	if err := s.space(); err != nil {
		return nil, err
	}
	for range cap(s.free) {
		s.free <- make([]byte, 0, segmentSize)
	}
	s.segment = <-s.free
	go s.run()
	return s, nil
}

// run writes full segments until there are no more.
func (s *spool) run() {
	defer close(s.done)
	for b := range s.full {
		if s.failed() == nil {
			s.chunks.Write(b)
			if _, err := s.file.Write(b); err != nil {
				s.mu.Lock()
				s.err = fmt.Errorf("write layer data: %w", diskFull(err))
				s.mu.Unlock()
			}
		}
		s.free <- b[:0]
	}
}

func (s *spool) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// put appends bytes to the blob.
func (s *spool) put(p []byte) error {
	for len(p) > 0 {
		n := copy(s.segment[len(s.segment):cap(s.segment)], p)
		s.segment = s.segment[:len(s.segment)+n]
		s.size += int64(n)
		p = p[n:]
		if len(s.segment) == cap(s.segment) {
			s.full <- s.segment
			s.segment = <-s.free
			if err := s.failed(); err != nil {
				return err
			}
			if err := s.space(); err != nil {
				return err
			}
		}
	}
	return nil
}

var zeros [holeUnit]byte

// align fills the last block.
func (s *spool) align() error {
	if n := s.size % erofs.BlockSize; n > 0 {
		return s.put(zeros[:erofs.BlockSize-n])
	}
	return nil
}

// space refuses to fill the disk.
func (s *spool) space() error {
	if s.size-s.checked < spaceEvery {
		return nil
	}
	s.checked = s.size
	return CheckSpace(s.file.Name(), spaceEvery+s.minFree)
}

// CheckSpace tells whether the file system that path lies on has so many bytes free. Error:
// sandbox.ErrExhausted.
func CheckSpace(path string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fmt.Errorf("disk of the layer store: %w: %d MiB free, %d MiB needed; delete unused layers or make room",
			errExhausted, free>>20, need>>20)
	}
	return nil
}

// add stores size bytes of a file and returns where they lie.
func (s *spool) add(ctx context.Context, r io.Reader, size int64) ([]erofs.Extent, error) {
	if size == 0 {
		return nil, nil
	}
	if size > smallSize {
		return s.addLarge(ctx, r, size)
	}
	content := s.small[:size]
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, short(err)
	}
	key := blake3.Sum256(content)
	if have, ok := s.stored[key]; ok {
		s.shared += size
		return have, nil
	}
	e := extents{spool: s}
	for off := int64(0); off < size; off += holeUnit {
		if err := e.store(off, content[off:min(off+holeUnit, size)]); err != nil {
			return nil, err
		}
	}
	if err := s.align(); err != nil {
		return nil, err
	}
	s.stored[key] = e.list
	return e.list, nil
}

// addLarge cuts a file into windows, of which those of zeros are left out. A window grows with the file, so
// that the number of chunks that describe it has a bound.
func (s *spool) addLarge(ctx context.Context, r io.Reader, size int64) ([]erofs.Extent, error) {
	window := int64(holeUnit)
	for size/window > maxWindows {
		window *= 2
	}
	e := extents{spool: s}
	var skipped int64 // zeros at the beginning of the window, not stored yet
	dense := false    // the window holds something
	for off := int64(0); off < size; off += holeUnit {
		if off%(1<<20) == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if off%window == 0 {
			skipped, dense = 0, false
		}
		p := s.piece[:min(holeUnit, size-off)]
		if _, err := io.ReadFull(r, p); err != nil {
			return nil, short(err)
		}
		if !dense && isZero(p) {
			skipped += int64(len(p))
			continue
		}
		for from := off - skipped; !dense && from < off; from += holeUnit {
			if err := e.add(from, zeros[:]); err != nil {
				return nil, err
			}
		}
		dense = true
		if err := e.add(off, p); err != nil {
			return nil, err
		}
	}
	return e.list, s.align()
}

// extents collects where the parts of one file were put.
type extents struct {
	spool *spool
	list  []erofs.Extent
}

// store stores a part of a file unless it is a hole.
func (e *extents) store(off int64, p []byte) error {
	if isZero(p) {
		return nil
	}
	return e.add(off, p)
}

func (e *extents) add(off int64, p []byte) error {
	at := e.spool.size
	if n := len(e.list); n > 0 && e.list[n-1].Offset+e.list[n-1].Length == off && e.list[n-1].Blob+e.list[n-1].Length == at {
		e.list[n-1].Length += int64(len(p))
	} else {
		e.list = append(e.list, erofs.Extent{Offset: off, Length: int64(len(p)), Blob: at})
	}
	return e.spool.put(p)
}

func isZero(p []byte) bool { return string(p) == string(zeros[:len(p)]) }

// close writes what is left and returns the blob's description.
func (s *spool) close() (layer.Blob, error) {
	if len(s.segment) > 0 {
		s.full <- s.segment
	}
	close(s.full)
	<-s.done
	return s.chunks.Blob(), s.err
}

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// diskFull gives a full disk its kind.
func diskFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", errExhausted, err)
	}
	return err
}
