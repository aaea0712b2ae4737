package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// Progress is told how far a stage ("pull", "convert") is; total 0 = unknown. It is called from several
// goroutines and must return at once; nil = nobody is told.
type Progress func(stage string, done, total int64)

// parallel is how many layers are fetched at a time.
const parallel = 3

// AddTo adds all layers of the image to b. Layers of a registry are first fetched into dir, a few at a time,
// while earlier ones are being read. Errors: as those of Pull, and of tree.Builder.AddTar.
func (img *Image) AddTo(ctx context.Context, b *tree.Builder, dir string, progress Progress) error {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	fetch := &fetcher{img: img, dir: dir, progress: progress}
	if img.remote && img.keep != "" {
		held, err := keepers.hold(ctx, img.keep, img.layers)
		if err != nil {
			return err
		}
		fetch.kept = held
		defer held.release()
	}
	err := fetch.run(ctx, b)
	if err == nil && fetch.kept != nil {
		fetch.kept.done()
	}
	return err
}

type fetcher struct {
	img      *Image
	dir      string
	progress Progress
	kept     *held // nil = nothing is kept for another import
	pulled   atomic.Int64
	read     atomic.Int64
}

func (f *fetcher) run(ctx context.Context, b *tree.Builder) error {
	if !f.img.remote {
		for n, l := range f.img.layers {
			if err := f.readLayer(ctx, b, n, func() (io.ReadCloser, error) { return f.img.source.open(ctx, l) }); err != nil {
				return err
			}
		}
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel + 2) // the fetchers, who starts them, and who reads
	ready := make([]chan struct{}, len(f.img.layers))
	for n := range ready {
		ready[n] = make(chan struct{})
	}
	g.Go(func() error {
		for n := range ready {
			select {
			case <-ready[n]:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			path := f.path(n)
			if err := f.readLayer(ctx, b, n, func() (io.ReadCloser, error) { return os.Open(path) }); err != nil {
				return err
			}
			if f.kept != nil {
				continue // until the whole image is read
			}
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		for n := range ready {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			g.Go(func() error {
				if err := f.fetchLayer(ctx, n); err != nil {
					return fmt.Errorf("layer %s: %w", f.img.layers[n].digest, err)
				}
				close(ready[n])
				return nil
			})
		}
		return nil
	})
	return g.Wait()
}

func (f *fetcher) path(n int) string {
	if f.kept != nil {
		return f.kept.path(f.img.layers[n])
	}
	return filepath.Join(f.dir, fmt.Sprintf("layer-%d", n))
}

// readLayer adds one layer's entries to the tree.
func (f *fetcher) readLayer(ctx context.Context, b *tree.Builder, n int, open func() (io.ReadCloser, error)) error {
	l := f.img.layers[n]
	r, err := open()
	if err != nil {
		return fmt.Errorf("layer %s: %w", l.digest, err)
	}
	defer r.Close()
	counted := &progressReader{r: r, add: func(n int64) { f.progress("convert", f.read.Add(n), f.img.Size) }}
	var content io.Reader = counted
	switch {
	case l.plain:
		plain, err := tree.Decompress(counted)
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.digest, err)
		}
		defer plain.Close()
		content = newVerifier(plain, l)
	case !f.img.remote || f.kept != nil: // else it was verified as it came, a moment ago
		content = newVerifier(counted, l)
	}
	b.NextLayer()
	if err := b.AddTar(ctx, content, tree.OCI); err != nil {
		return fmt.Errorf("layer %s: %w", l.digest, err)
	}
	return nil
}

// fetchLayer fetches one layer into a file, with several attempts.
func (f *fetcher) fetchLayer(ctx context.Context, n int) error {
	p := newPulse(f.img.patience)
	return retry(ctx, f.img.retry, p, func(ctx context.Context) error { return f.tryLayer(ctx, n, p) })
}

func (f *fetcher) tryLayer(ctx context.Context, n int, p *pulse) error {
	if f.kept != nil {
		return f.resumeLayer(ctx, n, p)
	}
	l := f.img.layers[n]
	r, err := f.img.source.open(ctx, l)
	if err != nil {
		return err
	}
	defer r.Close()
	file, err := os.Create(f.path(n))
	if err != nil {
		return err
	}
	defer file.Close()
	got := int64(0)
	counted := &progressReader{r: r, add: func(n int64) {
		got += n
		f.progress("pull", f.pulled.Add(n), f.img.Size)
	}}
	if _, err := io.Copy(file, newVerifier(counted, l)); err != nil {
		f.pulled.Add(-got)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: the connection was cut: %w", sandbox.ErrUnavailable, err)
		}
		return err
	}
	return file.Close()
}

type progressReader struct {
	r   io.Reader
	add func(int64)
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.add(int64(n))
	}
	return n, err
}
