package edge

import (
	"context"
	"fmt"
	"time"

	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

const (
	destroyTimeout = 60 * time.Second
	destroyRetry   = 2 * time.Second
)

// stop ends the sandbox for the given reason and waits until it is gone. Idempotent: the first reason stays.
func (b *box) stop(ctx context.Context, f *sandbox.Failure) error {
	b.mu.Lock()
	_ = b.step(lifecycle.Stop{Failure: f})
	b.mu.Unlock()
	select {
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s is ending but not gone yet: %w", b.id, context.Cause(ctx))
	case <-b.e.closing:
		return errClosing
	}
}

// beginStop is called once in a sandbox's life. b.mu is held.
func (b *box) beginStop(f *sandbox.Failure) {
	e := &record.Entry{Body: &record.Entry_Stopping{Stopping: &record.Stopping{Failure: failureProto(f)}}}
	if err := b.append(e); err != nil {
		b.e.log.Error("record the end", "sandbox", b.id, "err", err)
	}
	b.e.spawn(func() { b.destroy(f) })
}

// destroy removes the machine, however often that takes, and then records that it is gone.
func (b *box) destroy(f *sandbox.Failure) {
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	for inst != nil {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		err := inst.Destroy(ctx)
		cancel()
		if err == nil {
			break
		}
		b.e.log.Error("remove sandbox, will try again", "sandbox", b.id, "err", err)
		select {
		case <-time.After(destroyRetry):
		case <-b.e.closing:
			return // the next start sweeps it
		}
	}
	b.settleNetwork()
	b.settleFaults()
	b.finish(f)
}

// finish ends what was still running and records the sandbox's end.
func (b *box) finish(f *sandbox.Failure) {
	b.mu.Lock()
	running := make([]*command, 0, len(b.commands))
	for _, c := range b.commands {
		running = append(running, c)
	}
	conn := b.conn
	b.conn = nil
	b.mu.Unlock()
	closeQuietly(conn)
	for _, c := range running {
		b.endWith(c, f, 128+9, 9)
	}
	b.e.snapshots.unuse(b.created.Snapshots)
	b.e.snapshots.ended(b.id)
	b.mu.Lock()
	b.endSessions(f)
	for _, g := range b.leftover {
		g.CloseFiles()
	}
	b.leftover, b.inst = nil, nil
	b.endedAt = b.e.cfg.Clock.Wall()
	err := b.append(&record.Entry{Body: &record.Entry_Ended{Ended: &record.Ended{Failure: failureProto(f)}}})
	if err == nil {
		err = b.log.Sync()
	}
	if err != nil {
		b.e.log.Error("record the end", "sandbox", b.id, "err", err)
	}
	_ = b.log.Close() // reading opens it again
	_ = b.step(lifecycle.Stopped{})
	close(b.gone)
	b.mu.Unlock()
	b.e.log.Info("sandbox ended", "sandbox", b.id, "kind", f.Kind, "blame", f.Blame, "reason", f.Message)
	b.e.admit.gone()
	b.e.retire(b)
}
