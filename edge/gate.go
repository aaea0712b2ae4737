package edge

import (
	"context"
	"fmt"

	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/sandbox"
)

// find returns a sandbox that is known, whatever its state. Errors: ErrInvalid, ErrNotFound.
func (e *Edge) find(id string) (*box, error) {
	parsed, err := sandbox.ParseID(id)
	if err != nil {
		return nil, err
	}
	e.mu.RLock()
	b := e.boxes[parsed]
	e.mu.RUnlock()
	if b == nil {
		return nil, fmt.Errorf("sandbox %s: %w: it never was on edge %s, or ended longer than %v ago", id, sandbox.ErrNotFound, e.cfg.ID, e.cfg.Retention)
	}
	return b, nil
}

// enter is the gate that every request to a sandbox passes: it finds it, refuses one that has ended, wakes
// a paused one, and counts as activity until leave is called.
func (e *Edge) enter(ctx context.Context, id string) (b *box, leave func(), err error) {
	if b, err = e.find(id); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	if b.machine.State() == sandbox.StateCreating {
		b.mu.Unlock()
		return nil, nil, fmt.Errorf("sandbox %s is still being created: %w", id, sandbox.ErrFailedPrecondition)
	}
	if b.step(lifecycle.Enter{}) != nil {
		err = b.endedError()
		b.mu.Unlock()
		return nil, nil, err
	}
	paused := b.machine.State() == sandbox.StatePaused
	b.mu.Unlock()
	if paused {
		if err := b.wake(ctx); err != nil {
			b.leave()
			return nil, nil, err
		}
	}
	return b, b.leave, nil
}

// enterOrReplay is enter for a request that may repeat an earlier one: what its operation did is told even when
// the sandbox has ended since.
func (e *Edge) enterOrReplay(ctx context.Context, id, operation string) (b *box, leave func(), err error) {
	if b, leave, err = e.enter(ctx, id); err == nil || operation == "" {
		return b, leave, err
	}
	if known, ferr := e.find(id); ferr == nil && known.ending() && known.log.Operation(operation) != 0 {
		return known, func() {}, nil
	}
	return nil, nil, err
}

func (b *box) leave() {
	b.mu.Lock()
	_ = b.step(lifecycle.Leave{})
	b.mu.Unlock()
}

// running holds off freezes while fn runs, on a sandbox that is not frozen.
func (b *box) running(ctx context.Context, fn func() error) error {
	for {
		b.starting.RLock()
		if b.state() != sandbox.StatePaused {
			defer b.starting.RUnlock()
			return fn()
		}
		b.starting.RUnlock()
		if err := b.wake(ctx); err != nil {
			return err
		}
	}
}
