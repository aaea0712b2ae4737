package edge

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// A paused sandbox keeps its memory for a while, so that a pause of seconds costs next to nothing. Then it is put away, where
// its backend can (sandbox.Saver): its memory is on disk, and no process is left. Whatever resumes it brings it back.
const (
	// saveTimeout bounds the putting away, restoreTimeout the bringing back.
	saveTimeout    = 10 * time.Minute
	restoreTimeout = 2 * time.Minute
)

// saver returns the ability of an instance to be put away; nil where it has none.
func saver(inst sandbox.Instance) sandbox.Saver {
	s, _ := inst.(sandbox.Saver)
	return s
}

// saved tells whether the sandbox is put away. b.mu is held.
func (b *box) saved() bool {
	s := saver(b.inst)
	return s != nil && s.Saved()
}

// saveLater has a sandbox that was just paused put away when it is still paused then. b.mu is held.
func (b *box) saveLater(least time.Duration) {
	if b.e.cfg.PauseKeepsMemory < 0 || saver(b.inst) == nil || b.saved() {
		return
	}
	b.saveAt = max(b.e.boot()+max(b.e.cfg.PauseKeepsMemory, least), 1)
	b.arm()
}

// putAway ends what runs of a paused sandbox. Who wants the sandbox meanwhile does not wait: it stays in memory then.
func (b *box) putAway() {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	b.mu.Lock()
	b.stopSave = cancel
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.stopSave = nil
		b.mu.Unlock()
	}()
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		b.notSaved(ctx, ctx.Err())
		return
	case <-b.e.closing:
		return
	}
	defer b.unlock()
	b.mu.Lock()
	s, inst, conn := saver(b.inst), b.inst, b.conn
	if b.machine.State() != sandbox.StatePaused || s == nil || s.Saved() {
		b.mu.Unlock()
		return
	}
	b.conn = nil // its end is not the sandbox's
	b.mu.Unlock()
	b.watchEnd(inst)
	closeQuietly(conn)
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		select {
		case <-b.e.closing:
			cancel()
		case <-finished:
		}
	}()
	start := time.Now()
	bytes, err := s.Save(ctx)
	if err != nil {
		b.notSaved(ctx, err)
		return
	}
	b.mu.Lock()
	b.saveTold = ""
	b.mu.Unlock()
	b.e.stages.took("pause.save", start)
	b.note("saved", "its memory is on disk, and takes none of the node's", map[string]string{
		"bytes": strconv.FormatInt(bytes, 10), "usec": strconv.FormatInt(time.Since(start).Microseconds(), 10)})
}

// notSaved tells that a paused sandbox keeps its memory, once for each reason, and tries again later. ctx is that of the attempt, which
// is cut off by whoever wants the sandbox; err may be of what was cut.
func (b *box) notSaved(ctx context.Context, err error) {
	b.mu.Lock()
	paused := b.machine.State() == sandbox.StatePaused
	if paused {
		b.saveLater(b.e.cfg.SaveRetry)
	}
	b.mu.Unlock()
	if !paused || errors.Is(ctx.Err(), context.Canceled) { // somebody wanted it
		return
	}
	why := err.Error()
	if errors.Is(err, sandbox.ErrExhausted) { // how much room there is, which it says, changes all the time
		why = sandbox.ErrExhausted.Error()
	}
	b.mu.Lock()
	told := b.saveTold == why
	b.saveTold = why
	b.mu.Unlock()
	if told {
		return
	}
	b.e.log.Warn("put a paused sandbox away", "sandbox", b.id, "err", err)
	b.note("save_failed", "it stays paused in the node's memory: "+clip(err.Error(), maxMessage-64), nil)
}

// note records an event that changes nothing.
func (b *box) note(kind, message string, attributes map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.append(&record.Entry{Body: &record.Entry_Note{Note: &record.Note{Type: kind, Message: message, Attributes: attributes}}})
	if err != nil {
		b.e.log.Warn("record an event", "sandbox", b.id, "event", kind, "err", err)
	}
}

// watchEnd ends the sandbox when its machine ends: without a channel nothing else would tell.
func (b *box) watchEnd(inst sandbox.Instance) {
	b.mu.Lock()
	watched := b.watched
	b.watched = true
	b.mu.Unlock()
	if watched {
		return
	}
	b.e.spawn(func() {
		select {
		case <-inst.Done():
			b.lost(inst, nil)
		case <-b.gone:
		case <-b.e.closing:
		}
	})
}

// bringBack connects to the machine of a paused sandbox that was put away, or was about to be.
func (b *box) bringBack(ctx context.Context, inst sandbox.Instance) error {
	if saver(inst) == nil {
		return nil
	}
	b.linking.Lock()
	defer b.linking.Unlock()
	b.mu.Lock()
	connected, saved := b.conn != nil, b.saved()
	regroup := b.ungrouped
	b.mu.Unlock()
	if connected {
		return nil
	}
	start := time.Now()
	conn, err := inst.Connect(ctx)
	if err != nil {
		return err
	}
	if regroup {
		if err := b.openGroups(ctx, inst); err != nil {
			closeQuietly(conn)
			return err
		}
		b.sweepGroups(inst)
		b.mu.Lock()
		b.ungrouped = false
		b.mu.Unlock()
	}
	if err := b.attach(conn); err != nil {
		b.mu.Lock()
		if b.conn == conn {
			b.conn = nil
		}
		b.mu.Unlock()
		closeQuietly(conn)
		return fmt.Errorf("go on with what it runs: %w", err)
	}
	if saved {
		b.e.stages.took("resume.restore", start)
		b.note("restored", "its memory is the node's again", map[string]string{"usec": strconv.FormatInt(time.Since(start).Microseconds(), 10)})
	}
	return nil
}
