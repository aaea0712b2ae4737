package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// bring fetches manifest and metadata, both at once: before the first command of an image that the node never saw, it waits
// for them.
func (s *Server) bring(ctx context.Context, d layer.Digest) (*layer.Manifest, error) {
	meta := s.openMeta(ctx, d)
	m, err := s.store.Get(ctx, d)
	if err != nil {
		meta.close()
		return nil, err
	}
	return m, s.keep(ctx, d, m, meta)
}

// opening is metadata that is being opened; done is closed when it is, or cannot be.
type opening struct {
	done chan struct{}
	r    io.ReadCloser
	err  error
}

func (s *Server) openMeta(ctx context.Context, d layer.Digest) *opening {
	o := &opening{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.r, o.err = s.store.OpenMeta(ctx, d)
	}()
	return o
}

// close lets go of what nobody will read; it does not wait.
func (o *opening) close() {
	go func() {
		if <-o.done; o.err == nil {
			o.r.Close()
		}
	}()
}

// keep writes manifest and metadata to the node's disk.
func (s *Server) keep(ctx context.Context, d layer.Digest, m *layer.Manifest, meta *opening) error {
	defer func() {
		if meta != nil {
			meta.close()
		}
	}()
	encoded, got, err := m.Encode()
	if err != nil || got != d {
		return fmt.Errorf("layer %s: %w: %w: another manifest", d, sandbox.ErrUnavailable, layer.ErrDamaged)
	}
	tmp, err := os.MkdirTemp(s.layers, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, manifestName), encoded, 0o400); err != nil {
		return fmt.Errorf("layer %s: keep metadata: %w", d, err)
	}
	for try := 1; ; try++ {
		if meta == nil {
			meta = s.openMeta(ctx, d)
		}
		o := meta
		meta = nil // bringMeta's
		err := s.bringMeta(ctx, d, m, o, filepath.Join(tmp, metaName))
		if err == nil {
			break
		}
		if !errors.Is(err, layer.ErrDamaged) || try == maxDamaged {
			return err
		}
		s.src.storeDamaged.Add(1)
		if id, err := NodeID(d); err == nil {
			s.src.faults.note(id, FaultStoreDamaged)
		}
		s.o.Log.Error("the store gave damaged metadata: it is fetched again", "layer", d, "err", err)
	}
	// Something damaged, or half removed, may be there. Mounts of it keep their files.
	old := tmp + ".old"
	if err := os.Rename(s.dir(d), old); err == nil {
		defer os.RemoveAll(old)
		for _, name := range []string{traceName, openedName} {
			_ = os.Rename(filepath.Join(old, name), filepath.Join(tmp, name))
		}
	}
	if err := os.Rename(tmp, s.dir(d)); err != nil {
		return fmt.Errorf("layer %s: keep metadata: %w", d, err)
	}
	return nil
}

func (s *Server) bringMeta(ctx context.Context, d layer.Digest, m *layer.Manifest, o *opening, path string) error {
	select {
	case <-o.done:
	case <-ctx.Done():
		o.close()
		return context.Cause(ctx)
	}
	if o.err != nil {
		return o.err
	}
	r := o.r
	defer r.Close()
	defer context.AfterFunc(ctx, func() { r.Close() })()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("layer %s: keep metadata: %w", d, err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(r, m.Meta.Size+1))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("layer %s: metadata: %w: %w", d, sandbox.ErrUnavailable, err)
	case n != m.Meta.Size:
		return fmt.Errorf("layer %s: metadata: %w: %w: %d bytes, want %d", d, sandbox.ErrUnavailable, layer.ErrDamaged, n, m.Meta.Size)
	}
	if err := m.Meta.Verify(ctx, f); err != nil {
		return fmt.Errorf("layer %s: metadata: %w", d, err)
	}
	return nil
}
