package edge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// freezeTimeout bounds a freeze or thaw.
const freezeTimeout = 30 * time.Second

// pause freezes the sandbox. Idempotent. What fails is rolled back: it then runs as before.
func (b *box) pause(ctx context.Context) error { return b.freeze(ctx, false) }

// park pauses it because its time has run out, unless somebody has given it more meanwhile.
func (b *box) park() {
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	err := b.freeze(ctx, true)
	if err == nil {
		return
	}
	b.e.log.Warn("pause a sandbox whose time ran out", "sandbox", b.id, "err", err)
	b.mu.Lock()
	_ = b.step(lifecycle.PauseFailed{Reason: err.Error()})
	b.mu.Unlock()
}

// freeze pauses. With due it does so only while the sandbox's time has run out.
func (b *box) freeze(ctx context.Context, due bool) error {
	return b.change(ctx, sandbox.StatePaused, func(ctx context.Context, inst sandbox.Instance) error {
		if !b.backend.Capabilities().Pause {
			return fmt.Errorf("pause a %s sandbox: %w", b.backend.Name(), sandbox.ErrUnsupported)
		}
		b.starting.Lock()
		defer b.starting.Unlock()
		if due && !b.due() {
			return nil
		}
		undo := func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
			defer cancel()
			if err := inst.Resume(ctx); err != nil {
				b.e.log.Error("thaw after a freeze that was not to be", "sandbox", b.id, "err", err)
			}
			b.holdTimeouts(ctx, false)
		}
		b.holdTimeouts(ctx, true)
		if err := inst.Pause(ctx); err != nil {
			undo()
			return err
		}
		b.mu.Lock()
		if due && !b.machine.Pausing() { // given more time while it froze
			b.mu.Unlock()
			undo()
			return nil
		}
		defer b.mu.Unlock()
		if err := b.changedLocked(&record.Entry{Body: &record.Entry_Paused{Paused: &record.Paused{}}}, lifecycle.Paused{}); err != nil {
			return err
		}
		b.saveLater(0)
		return nil
	})
}

// due tells that the sandbox is to be paused because its time has run out.
func (b *box) due() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine.Pausing()
}

// wake resumes a paused sandbox for a request that needs it running. Error: errPaused where it takes more than a request.
func (b *box) wake(ctx context.Context) error {
	if b.created.GetSpec().GetManualResume() {
		return fmt.Errorf("sandbox %s is paused: %w: resume it first", b.id, errPaused)
	}
	return b.resume(ctx)
}

// errPaused is of kind sandbox.ErrFailedPrecondition.
var errPaused = fmt.Errorf("requests do not wake it (manual_resume): %w", sandbox.ErrFailedPrecondition)

// resume thaws it. Idempotent.
func (b *box) resume(ctx context.Context) error {
	return b.change(ctx, sandbox.StateRunning, func(ctx context.Context, inst sandbox.Instance) error {
		if err := b.bringBack(ctx, inst); err != nil {
			return err
		}
		if err := inst.Resume(ctx); err != nil {
			return err
		}
		b.mu.Lock()
		b.saveAt, b.saveTold = 0, ""
		b.mu.Unlock()
		b.holdTimeouts(ctx, false)
		return b.changed(&record.Entry{Body: &record.Entry_Resumed{Resumed: &record.Resumed{}}}, lifecycle.Resumed{})
	})
}

// holdTimeouts keeps a freeze from using up the timeouts of commands: dsec-init itself is not frozen. Where
// it cannot be asked the freeze goes on without.
func (b *box) holdTimeouts(ctx context.Context, hold bool) {
	conn, _, err := b.channel()
	if errors.Is(err, sandbox.ErrUnsupported) { // no agent, no commands
		return
	}
	if err == nil {
		err = conn.HoldTimeouts(ctx, hold)
	}
	if err != nil {
		b.e.log.Warn("hold the timeouts of commands", "sandbox", b.id, "hold", hold, "err", err)
	}
}

// change brings the sandbox into a state unless it is there. The work is not cut short when the caller goes
// away: half a freeze is no state.
func (b *box) change(ctx context.Context, to sandbox.State, do func(context.Context, sandbox.Instance) error) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	b.mu.Lock()
	state, inst := b.machine.State(), b.inst
	var err error
	switch {
	case state == sandbox.StateStopping || state == sandbox.StateStopped:
		err = b.endedError()
	case state == sandbox.StateCreating:
		err = fmt.Errorf("sandbox %s is still being created: %w", b.id, sandbox.ErrFailedPrecondition)
	case inst == nil:
		err = fmt.Errorf("sandbox %s cannot be reached at the moment, try again: %w", b.id, sandbox.ErrUnavailable)
	}
	b.mu.Unlock()
	if err != nil || state == to {
		return err
	}
	limit := freezeTimeout
	if saver(inst) != nil && to == sandbox.StateRunning {
		limit = restoreTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := do(ctx, inst); err != nil {
		return fmt.Errorf("bring sandbox %s to %s: %w", b.id, to, err)
	}
	return nil
}

// changed records a change of state that has happened.
func (b *box) changed(e *record.Entry, in lifecycle.Input) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changedLocked(e, in)
}

// changedLocked is changed while b.mu is held.
func (b *box) changedLocked(e *record.Entry, in lifecycle.Input) error {
	if err := b.step(in); err != nil {
		return b.endedError()
	}
	return b.append(e)
}
