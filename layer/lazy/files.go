package lazy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Find looks a file up by its name, the digits of the layer's digest.
func (s *Server) Find(name string) (fuse.File, bool) {
	d, err := layer.ParseDigest("b3:" + name)
	if err != nil {
		return fuse.File{}, false
	}
	id, err := NodeID(d)
	if err != nil {
		return fuse.File{}, false
	}
	if l := s.find(id); l == nil || l.digest != d {
		return fuse.File{}, false
	}
	return s.Get(id)
}

// Get describes a file.
func (s *Server) Get(id uint64) (fuse.File, bool) {
	l := s.find(id)
	if l == nil {
		return fuse.File{}, false
	}
	return fuse.File{ID: id, Size: l.manifest.Data.Size}, true
}

// Opened notes that the kernel has a file open.
func (s *Server) Opened(id uint64) { s.count(id, 1) }

// Released notes that it has closed it.
func (s *Server) Released(id uint64) { s.count(id, -1) }

func (s *Server) count(id uint64, by int64) {
	l := s.find(id)
	if l == nil {
		return
	}
	n := l.opened.Add(by)
	path := filepath.Join(s.dir(l.digest), openedName)
	if n > 0 {
		_ = os.WriteFile(path, []byte(strconv.FormatInt(n, 10)+"\n"), 0o600)
		return
	}
	_ = os.Remove(path)
	s.mu.Lock()
	gone := s.removed[l.digest]
	s.mu.Unlock()
	if gone {
		// Not here: the kernel waits for the answer to its release, and the store may be slow.
		s.src.work.Go(func() { s.finish(s.src.ctx, l.digest) })
	}
}

// Read reads a layer's data.
func (s *Server) Read(ctx context.Context, id uint64, off int64, size int) (pieces [][]byte, done func(), err error) {
	start := time.Now()
	s.src.reads.Add(1)
	l := s.find(id)
	if l == nil {
		return nil, nil, s.fault(ctx, id, start, fmt.Errorf("file %016x: %w", id, sandbox.ErrNotFound))
	}
	end := min(off+int64(size), l.manifest.Data.Size)
	if off < 0 || off >= end {
		return nil, nil, nil
	}
	l.trace.note(off, end)
	pieces, done, err = s.src.read(ctx, l, off, end)
	if err != nil {
		return nil, nil, s.fault(ctx, id, start, err)
	}
	s.src.readBytes.Add(end - off)
	return pieces, done, nil
}

// fault writes a failed read down before the reader learns of it.
func (s *Server) fault(ctx context.Context, id uint64, start time.Time, err error) error {
	if ctx.Err() != nil {
		return ctx.Err() // this server ends: its successor answers
	}
	s.src.failures.Add(1)
	select {
	case <-time.After(leastFault - time.Since(start)):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.o.Log.Error("a read fails", "err", err, "after", time.Since(start).Round(time.Millisecond))
	if s.o.Faults != nil {
		if err := s.o.Faults.Record(id, time.Now()); err != nil {
			s.o.Log.Error("a store fault is not recorded: what fails for it will be taken for the task's doing", "err", err)
		}
	}
	return syscall.EIO
}

// Delete removes a layer from the store: now, or when the kernel lets go of it. A layer that still serves cannot be
// attached any more. Error: sandbox.ErrNotFound.
func (s *Server) Delete(ctx context.Context, d layer.Digest) error {
	id, err := NodeID(d)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	if l := s.find(id); l != nil && l.digest == d && l.opened.Load() > 0 {
		if _, err := s.store.Get(ctx, d); err != nil {
			return err
		}
		s.mu.Lock()
		s.removed[d] = true
		s.mu.Unlock()
		if l.opened.Load() > 0 {
			return nil
		}
	}
	return s.finish(ctx, d)
}

// Restore takes a Delete back that has not happened yet: the layer was published again.
func (s *Server) Restore(d layer.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.removed, d)
}

// finish removes a layer from the store and from the node.
func (s *Server) finish(ctx context.Context, d layer.Digest) error {
	s.mu.Lock()
	id, _ := NodeID(d)
	delete(s.removed, d)
	if s.onDisk[id] == d {
		delete(s.onDisk, id)
		delete(s.known, id)
	}
	s.mu.Unlock()
	rerr := os.RemoveAll(s.dir(d))
	err := s.store.Delete(ctx, d)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		s.o.Log.Warn("delete layer", "layer", d, "err", err)
	}
	if err == nil {
		err = rerr
	}
	return err
}
