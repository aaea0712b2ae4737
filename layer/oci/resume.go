package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/opendsec/dsec/sandbox"
)

// Layers of a registry that were fetched, whole or in part, outlive an import that ends in the middle: <algorithm>-<hex> is
// whole, <algorithm>-<hex>.part is its beginning. They go when an import that used them succeeded, and with age.

const (
	partSuffix = ".part"
	// keepAge is how long they wait for another import.
	keepAge = 24 * time.Hour
)

// keepers knows which of those files are in use by this process's imports.
var keepers = &keeping{users: map[string]int{}, busy: map[string]chan struct{}{}}

type keeping struct {
	mu    sync.Mutex
	users map[string]int
	busy  map[string]chan struct{} // being fetched
}

// held are the files of one import.
type held struct {
	dir   string
	paths []string
}

// hold marks the files of an import as used, and clears away what nobody came back for.
func (k *keeping) hold(_ context.Context, dir string, layers []blob) (*held, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep what is fetched: %w", err)
	}
	h := &held{dir: dir}
	seen := map[string]bool{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range layers {
		if l.digest.Algorithm != "sha256" || len(l.digest.Hex) != 64 {
			return nil, fmt.Errorf("%w: digest %s is not of sha256", sandbox.ErrUnsupported, l.digest)
		}
		if p := h.path(l); !seen[p] {
			seen[p] = true
			k.users[p]++
			h.paths = append(h.paths, p)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return h, nil // a courtesy
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		whole := p
		if filepath.Ext(p) == partSuffix {
			whole = p[:len(p)-len(partSuffix)]
		}
		if info, err := e.Info(); err == nil && k.users[whole] == 0 && time.Since(info.ModTime()) > keepAge {
			_ = os.Remove(p)
		}
	}
	return h, nil
}

func (h *held) path(l blob) string { return filepath.Join(h.dir, l.digest.Algorithm+"-"+l.digest.Hex) }

// done removes the files, but for those that another import uses.
func (h *held) done() {
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	for _, p := range h.paths {
		if keepers.users[p] == 1 {
			_ = os.Remove(p)
		}
	}
}

func (h *held) release() {
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	for _, p := range h.paths {
		if keepers.users[p]--; keepers.users[p] == 0 {
			delete(keepers.users, p)
		}
	}
}

// begin waits until no other import fetches the file.
func (k *keeping) begin(ctx context.Context, path string) (end func(), err error) {
	for {
		k.mu.Lock()
		other := k.busy[path]
		if other == nil {
			done := make(chan struct{})
			k.busy[path] = done
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.busy, path)
				k.mu.Unlock()
				close(done)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// resumeLayer fetches what is missing of one layer. It is one attempt.
func (f *fetcher) resumeLayer(ctx context.Context, n int, p *pulse) error {
	l, path := f.img.layers[n], f.path(n)
	p.pause() // another import's transfer, which may be waited for, has a pulse of its own
	end, err := keepers.begin(ctx, path)
	p.resume()
	if err != nil {
		return err
	}
	defer end()
	if n, err := whole(path, l, p); err == nil {
		f.progress("pull", f.pulled.Add(n), f.img.Size)
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) { // of no use to anybody
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	part, err := os.OpenFile(path+partSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer part.Close()
	have, err := part.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if l.size >= 0 && have > l.size {
		have = 0
	}
	r, from, err := f.open(ctx, l, have)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := part.Truncate(from); err != nil {
		return err
	}
	got := from
	f.pulled.Add(from)
	counted := &progressReader{r: r, add: func(n int64) {
		got += n
		f.progress("pull", f.pulled.Add(n), f.img.Size)
	}}
	// All of it passes the verifier, what was kept too; only what is new is written.
	v := newVerifier(io.MultiReader(&progressReader{r: io.NewSectionReader(part, 0, from), add: func(int64) { p.beat() }}, &appendReader{r: counted, file: part, at: from}), l)
	if _, err := io.Copy(io.Discard, v); err != nil {
		f.pulled.Add(-got)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%w: the connection was cut: %w", sandbox.ErrUnavailable, err)
		case errors.Is(err, sandbox.ErrInvalid): // nothing to go on from
			if rerr := os.Remove(part.Name()); rerr != nil {
				return errors.Join(err, rerr)
			}
			if from > 0 { // what was kept may be to blame: once more from the beginning
				return fmt.Errorf("%w: what was kept of it does not fit: %w", sandbox.ErrUnavailable, err)
			}
		}
		return err
	}
	return os.Rename(part.Name(), path)
}

// whole tells whether a file is the layer, and how large.
func whole(path string, l blob, p *pulse) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return io.Copy(io.Discard, newVerifier(&progressReader{r: file, add: func(int64) { p.beat() }}, l))
}

// open opens a layer behind an offset; a registry that refuses the range, with whatever words, gives it from its beginning.
func (f *fetcher) open(ctx context.Context, l blob, offset int64) (io.ReadCloser, int64, error) {
	r, ok := f.img.source.(*registry)
	if !ok || offset == 0 || offset == l.size {
		offset = 0
	}
	if offset > 0 {
		content, from, err := r.openFrom(ctx, l, offset)
		if !refused(err) {
			return content, from, err
		}
	}
	content, err := f.img.source.open(ctx, l)
	return content, 0, err
}

// refused tells whether an error may be about the range. Some registries know none and answer 416, or choke on it, and where they
// send one to may too: the same request would fail for ever. One that is busy is asked for the same again.
func refused(err error) bool {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return errors.Is(err, sandbox.ErrInvalid)
	}
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// appendReader writes to a file what is read.
type appendReader struct {
	r    io.Reader
	file *os.File
	at   int64
}

func (a *appendReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		if _, werr := a.file.WriteAt(p[:n], a.at); werr != nil {
			return 0, werr
		}
		a.at += int64(n)
	}
	return n, err
}

// Kept tells how many bytes of unfinished imports a directory holds.
func Kept(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum, nil
}
