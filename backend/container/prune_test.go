package container

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// emptied is a store that loses everything at once.
type emptied struct {
	layer.Node
	gone atomic.Bool
}

func (e *emptied) Local(ctx context.Context, d layer.Digest) (*layer.Local, error) {
	if e.gone.Load() {
		return nil, fmt.Errorf("layer %s: %w", d, sandbox.ErrNotFound)
	}
	return e.Node.Local(ctx, d)
}

// The node lets go of a deleted layer; the sandbox that uses it does not notice.
func TestPruneDeletedLayers(t *testing.T) {
	var store *emptied
	b := newBed(t, func(c *Config) {
		store = &emptied{Node: c.Layers}
		c.Layers = store
	})
	c := connect(t, b.create(nil))
	mounted := func() int {
		b.d.mounts.mu.Lock()
		defer b.d.mounts.mu.Unlock()
		return len(b.d.mounts.m)
	}
	b.d.mounts.prune(t.Context())
	if n := mounted(); n != 1 {
		t.Fatalf("%d layers are mounted", n)
	}
	store.gone.Store(true)
	b.d.mounts.prune(t.Context())
	if n := mounted(); n != 0 {
		t.Errorf("%d layers are still mounted", n)
	}
	if out := c.must("head -c 5 /etc/debian_version >/dev/null; grep -c ^root: /etc/passwd"); out != "1\n" {
		t.Errorf("in the sandbox: %q", out)
	}
	spec := &sandbox.Spec{Backend: sandbox.BackendContainer, Layers: b.base, Limits: limits}
	if _, err := b.d.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a creation of it: %v", err)
	}
}
