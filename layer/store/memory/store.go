// Package memory keeps layers in memory, for tests.
package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Store holds layers. The zero value is empty.
type Store struct {
	mu     sync.Mutex
	layers map[layer.Digest]*held
}

type held struct {
	manifest   *layer.Manifest
	meta, data []byte
}

var _ layer.Store = (*Store)(nil)

func (s *Store) find(d layer.Digest) (*held, error) {
	if _, err := layer.ParseDigest(string(d)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.layers[d]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("layer %s: %w in this store: import it again", d, sandbox.ErrNotFound)
}

// Get returns a manifest.
func (s *Store) Get(_ context.Context, d layer.Digest) (*layer.Manifest, error) {
	h, err := s.find(d)
	if err != nil {
		return nil, err
	}
	m := *h.manifest
	return &m, nil
}

// OpenMeta reads the metadata.
func (s *Store) OpenMeta(_ context.Context, d layer.Digest) (io.ReadCloser, error) {
	h, err := s.find(d)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(h.meta)), nil
}

// OpenData reads the data.
func (s *Store) OpenData(_ context.Context, d layer.Digest) (io.ReadCloser, error) {
	h, err := s.find(d)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(h.data)), nil
}

// ReadData reads a part of the data.
func (s *Store) ReadData(ctx context.Context, d layer.Digest, p []byte, off int64) error {
	h, err := s.find(d)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if off < 0 || off > int64(len(h.data)) || copy(p, h.data[off:]) < len(p) {
		return fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrUnavailable, layer.Truncated(off, len(p)))
	}
	return nil
}

// Put publishes a layer.
func (s *Store) Put(ctx context.Context, m *layer.Manifest, meta, data io.Reader) (layer.Digest, error) {
	_, d, err := m.Encode()
	if err != nil {
		return "", err
	}
	c := *m
	h := &held{manifest: &c}
	for _, p := range []struct {
		name string
		from io.Reader
		blob *layer.Blob
		to   *[]byte
	}{{"metadata", meta, &m.Meta, &h.meta}, {"data", data, &m.Data, &h.data}} {
		if p.blob.Size == 0 {
			continue
		}
		if *p.to, err = io.ReadAll(io.LimitReader(p.from, p.blob.Size)); err != nil {
			return "", fmt.Errorf("publish layer %s: %s: %w", d, p.name, err)
		}
		err := p.blob.Verify(ctx, bytes.NewReader(*p.to))
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if errors.Is(err, layer.ErrDamaged) || errors.Is(err, io.EOF) {
			return "", fmt.Errorf("publish layer %s: %w: %s is not what the manifest says", d, sandbox.ErrInvalid, p.name)
		}
		if err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layers == nil {
		s.layers = map[layer.Digest]*held{}
	}
	s.layers[d] = h
	return d, nil
}

// List returns what is published.
func (s *Store) List(context.Context) ([]layer.Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]layer.Digest, 0, len(s.layers))
	for d := range s.layers {
		out = append(out, d)
	}
	return out, nil
}

// Delete removes a layer.
func (s *Store) Delete(_ context.Context, d layer.Digest) error {
	if _, err := s.find(d); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.layers, d)
	return nil
}
