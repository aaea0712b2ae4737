package container

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opendsec/dsec/sandbox"
)

// Recover finds a container that an earlier process made.
func (d *Driver) Recover(_ context.Context, id sandbox.ID, handle []byte) (sandbox.Instance, error) {
	if string(handle) != string(id) {
		return nil, fmt.Errorf("recover %s: %w: not its handle", id, sandbox.ErrInvalid)
	}
	d.mu.Lock()
	have := d.instances[id]
	d.mu.Unlock()
	if have != nil { // the edge was started again, the driver was not
		return have, nil
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
	i := &instance{d: d, id: id, slot: r.Slot, net: r.Net, groups: d.tree.Sandbox(string(id)), layer: l, done: make(chan struct{}), pidfd: p}
	d.mu.Lock()
	d.instances[id] = i
	d.mu.Unlock()
	d.adopt(p, i.exited)
	return i, nil
}

// Sweep removes every part of containers and shells that are not to be kept, found by any of their traces:
// records, control groups, writable layers.
func (d *Driver) Sweep(ctx context.Context, keep func(sandbox.ID) bool) ([]string, error) {
	seen := map[string]bool{}
	shells, err := os.ReadDir(d.shellsDir)
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
	if err := d.sweepFlushes(layers); err != nil {
		return nil, err
	}
	for _, n := range append(groups, layers...) {
		seen[n] = true
	}
	if err := d.sweepNetwork(keep); err != nil {
		return nil, err
	}
	var ids []sandbox.ID
	for n := range seen {
		// What is not named like a sandbox of this edge is not ours to remove.
		if id, err := sandbox.ParseID(n); err == nil && id.Edge() == d.cfg.Edge && !keep(id) && !d.isShell(id) {
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
		d.mu.Lock()
		inst := d.instances[id]
		d.mu.Unlock()
		var err error
		if inst != nil {
			err = inst.Destroy(ctx)
		} else {
			err = d.removeByID(id, nil)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", id, err))
			continue
		}
		out = append(out, string(id))
	}
	return out, errors.Join(errs...)
}

// isShell tells whether an id is that of a shell that this process keeps ready or is making.
func (d *Driver) isShell(id sandbox.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shells[id]
}

// Process opens a container's dsec-init, for tests that end it. Error: sandbox.ErrNotFound.
func (d *Driver) Process(id sandbox.ID) (*os.File, error) {
	r, err := d.load(id)
	if err != nil {
		return nil, err
	}
	return r.process()
}
