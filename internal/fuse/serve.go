package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// File is one file of the directory.
type File struct {
	ID   uint64 // its node id: above 1, and for ever this file's
	Size int64  // bytes
}

// Files is what is served. Its methods are called by several goroutines at once.
type Files interface {
	// Find looks a name up.
	Find(name string) (File, bool)
	// Get describes a file by its id.
	Get(id uint64) (File, bool)
	// Opened and Released tell of each open file and of its end.
	Opened(id uint64)
	Released(id uint64)
	// Read returns what lies at off, in pieces of size bytes altogether or up to the end of the file. The pieces do
	// not change until done is called, which is nil where nobody needs to know. Any error is the reader's EIO, but for
	// a syscall.Errno.
	Read(ctx context.Context, id uint64, off int64, size int) (pieces [][]byte, done func(), err error)
}

const (
	// bufSize is the room for one request: the kernel wants at least 8 KiB.
	bufSize = 64 << 10
	// maxReads bounds the reads that are being served; further ones wait in the kernel.
	maxReads = 4096
)

// Serve answers the kernel on a device made by New, perhaps of an earlier process, until ctx is done or the mount is
// gone. It asks first for what an earlier server left unanswered. When ctx is done no more is taken; reads in
// progress are answered if Read returns, which sees ctx done: those that it refuses with the context's error are
// left to a successor. The device stays open.
func Serve(ctx context.Context, device *os.File, files Files) error {
	d, err := linux.DupFile(device)
	if err != nil {
		return err
	}
	s := &server{device: d, files: files, slots: make(chan struct{}, maxReads)}
	defer d.Close()
	defer s.reads.Wait()
	stop := context.AfterFunc(ctx, func() { _ = d.SetReadDeadline(past) })
	defer stop()
	if err := resend(d); err != nil {
		return err
	}
	buf := make([]byte, bufSize)
	for {
		n, err := d.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR):
			continue // the request was withdrawn while it was read
		case errors.Is(err, syscall.ENODEV), err != nil && isGone(d):
			return nil // unmounted
		case err != nil:
			return fmt.Errorf("fuse: read request: %w", err)
		}
		if err := s.handle(ctx, buf[:n]); err != nil {
			return err
		}
	}
}

// isGone asks the kernel itself: the runtime's poller knows an unmounted device only as broken.
func isGone(d *os.File) bool {
	_, err := syscall.Read(int(d.Fd()), make([]byte, bufSize))
	return err == syscall.ENODEV
}

type server struct {
	device *os.File
	files  Files
	slots  chan struct{}
	reads  sync.WaitGroup
}

// handle answers one request; reads are answered later, by goroutines of their own.
func (s *server) handle(ctx context.Context, b []byte) error {
	h, body, err := parse(b)
	if err != nil {
		return err
	}
	switch h.op {
	case opForget, opBatchForget:
		return nil // nothing is remembered, and nothing is answered
	case opInterrupt:
		// Asked once, the kernel does not ask again: reads end by their deadline.
		return answer(s.device, h.unique, syscall.ENOSYS)
	case opRead:
		if len(body) < 24 {
			return fmt.Errorf("fuse: READ of %d bytes", len(b))
		}
		off, size := int64(ne.Uint64(body[8:])), int(ne.Uint32(body[16:]))
		s.slots <- struct{}{} // those who hold them are done by their deadlines
		s.reads.Go(func() {
			defer func() { <-s.slots }()
			s.read(ctx, h, off, size)
		})
		return nil
	}
	content, errno := s.meta(h, body)
	if errno != 0 {
		return answer(s.device, h.unique, errno)
	}
	return answer(s.device, h.unique, 0, content)
}

// meta answers all that needs no data.
func (s *server) meta(h header, body []byte) ([]byte, syscall.Errno) {
	switch h.op {
	case opLookup:
		name, _, ended := bytes.Cut(body, []byte{0})
		if f, ok := s.files.Find(string(name)); ended && ok && h.node == rootID {
			return entryOut(f), 0
		}
		return nil, syscall.ENOENT
	case opGetattr:
		if h.node == rootID {
			return attrOut(File{ID: rootID}), 0
		}
		if f, ok := s.files.Get(h.node); ok {
			return attrOut(f), 0
		}
		return nil, syscall.ENOENT
	case opOpen:
		if len(body) >= 4 && ne.Uint32(body)&syscall.O_ACCMODE != syscall.O_RDONLY {
			return nil, syscall.EROFS
		}
		if _, ok := s.files.Get(h.node); !ok {
			return nil, syscall.ENOENT
		}
		s.files.Opened(h.node)
		return openOut(openKeepCache | openNoFlush), 0
	case opRelease:
		s.files.Released(h.node)
		return nil, 0
	case opStatfs:
		return statfsOut(), 0
	case opFlush, opReleasedir, opDestroy:
		return nil, 0
	case opOpendir:
		return openOut(0), 0
	case opReaddir:
		return nil, 0 // who needs a file knows its name
	}
	return nil, syscall.ENOSYS
}

func (s *server) read(ctx context.Context, h header, off int64, size int) {
	pieces, done, err := s.files.Read(ctx, h.node, off, size)
	if done != nil {
		defer done()
	}
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return // a successor answers
		}
		errno := syscall.EIO
		if e := syscall.Errno(0); errors.As(err, &e) && e == syscall.ENOENT {
			errno = e
		}
		_ = answer(s.device, h.unique, errno)
		return
	}
	if err := answer(s.device, h.unique, 0, pieces...); err != nil && !errors.Is(err, os.ErrClosed) {
		_ = answer(s.device, h.unique, syscall.EIO)
	}
}

// past is a deadline that wakes a reader.
var past = time.Unix(1, 0)
