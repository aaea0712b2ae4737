package layertest

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Faulty is a store with faults that a test sets and clears while it is used.
type Faulty struct {
	layer.Store
	Requests atomic.Int64 // for data

	mu   sync.Mutex
	gone bool
	hold chan struct{}
	bend func(p []byte, off int64)
	cut  int64
}

// Gone makes the store unreachable, or reachable again.
func (f *Faulty) Gone(gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = gone
}

// Stop makes requests for data wait until the returned function is called.
func (f *Faulty) Stop() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	f.hold = c
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.hold == c {
			f.hold = nil
			close(c)
		}
	}
}

// Bend changes what is read; nil = not any more.
func (f *Faulty) Bend(bend func(p []byte, off int64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bend = bend
}

// Cut makes the data end at a byte; 0 = not any more.
func (f *Faulty) Cut(at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = at
}

func (f *Faulty) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return fmt.Errorf("%w: the store is gone", sandbox.ErrUnavailable)
	}
	return nil
}

// Get fails while the store is gone.
func (f *Faulty) Get(ctx context.Context, d layer.Digest) (*layer.Manifest, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.Store.Get(ctx, d)
}

// OpenMeta fails while the store is gone.
func (f *Faulty) OpenMeta(ctx context.Context, d layer.Digest) (io.ReadCloser, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.Store.OpenMeta(ctx, d)
}

// ReadData reads, with the faults that are set.
func (f *Faulty) ReadData(ctx context.Context, d layer.Digest, p []byte, off int64) error {
	f.Requests.Add(1)
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := f.check(); err != nil {
		return err
	}
	f.mu.Lock()
	bend, cut := f.bend, f.cut
	f.mu.Unlock()
	if cut > 0 && off+int64(len(p)) > cut {
		return fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrUnavailable, layer.Truncated(off, len(p)))
	}
	if err := f.Store.ReadData(ctx, d, p, off); err != nil {
		return err
	}
	if bend != nil {
		bend(p, off)
	}
	return nil
}
