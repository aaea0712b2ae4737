package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/sandbox"
)

// Recover finds a container that an earlier process made.
func (d *Driver) Recover(_ context.Context, id sandbox.ID, handle []byte) (sandbox.Instance, error) {
	if string(handle) != string(id) {
		return nil, fmt.Errorf("recover %s: %w: not its handle", id, sandbox.ErrInvalid)
	}
	r, err := d.load(id)
	if err != nil {
		return nil, err
	}
	p, err := r.process()
	if err != nil {
		return nil, err
	}
	l, err := d.pool.Find(string(id))
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("writable layer of %s: %w: %w", id, sandbox.ErrNotFound, err)
	}
	if err := d.slots.claim(r.Slot); err != nil {
		p.Close()
		return nil, err
	}
	i := &instance{d: d, id: id, slot: r.Slot, groups: d.tree.Sandbox(string(id)), layer: l, done: make(chan struct{}), pidfd: p}
	d.adopt(p, i.exited)
	return i, nil
}

// Sweep removes every part of containers and shells that are not to be kept, found by any of their traces:
// records, control groups, writable layers.
func (d *Driver) Sweep(ctx context.Context, keep func(sandbox.ID) bool) ([]string, error) {
	seen := map[string]bool{}
	shells, err := os.ReadDir(filepath.Join(d.cfg.StateDir, "run", "shells"))
	if err != nil {
		return nil, err
	}
	for _, e := range shells {
		seen[e.Name()] = true
	}
	groups, err := d.tree.List()
	if err != nil {
		return nil, err
	}
	layers, err := d.pool.List()
	if err != nil {
		return nil, err
	}
	for _, n := range append(groups, layers...) {
		seen[n] = true
	}
	var ids []sandbox.ID
	for n := range seen {
		// What is not named like a sandbox of this edge is not ours to remove.
		if id, err := sandbox.ParseID(n); err == nil && id.Edge() == d.cfg.Edge && !keep(id) {
			ids = append(ids, id)
		}
	}
	// All are killed first, so that they end together.
	for _, id := range ids {
		_ = d.tree.Sandbox(string(id)).Kill()
	}
	var out []string
	var errs []error
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if err := d.removeByID(id, nil); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", id, err))
			continue
		}
		out = append(out, string(id))
	}
	return out, errors.Join(errs...)
}
