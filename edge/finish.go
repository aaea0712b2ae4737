package edge

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// evidence is what is known about a command's end besides its exit.
type evidence struct {
	oomKills int64
	killed   bool             // its tree was killed by request
	signals  map[int32]bool   // sent by request
	diskFull bool             // it met its own disk's limit
	poolFull bool             // it met the end of what all share
	store    *sandbox.Failure // a layer could not be read while it ran
}

// classify says how a command ended, and whose doing that was.
func classify(x wire.Exit, ev evidence) *sandbox.Failure {
	switch {
	case x.TimedOut:
		return sandbox.NewFailure(sandbox.KindTimedOut, "it ran into its timeout")
	case x.Signal != 0 && (ev.killed || ev.signals[x.Signal]):
		return sandbox.NewFailure(sandbox.KindKilled, "signal %d was sent to it by request", x.Signal)
	case ev.oomKills > 0 && (x.Signal == 9 || x.Code == 128+9):
		return sandbox.NewFailure(sandbox.KindOOMKilled, "the sandbox reached its memory limit")
	case x.Signal != 0 && x.Killed:
		return sandbox.NewFailure(sandbox.KindKilled, "it was ended by request")
	case ev.store != nil:
		return ev.store
	case ev.diskFull:
		return sandbox.NewFailure(sandbox.KindDiskFull, "the sandbox's disk is full")
	case ev.poolFull:
		return sandbox.NewFailure(sandbox.KindStoreFault, "the node's room for writable layers is used up, though the sandbox kept within its limit")
	case x.Signal != 0:
		return sandbox.NewFailure(sandbox.KindSignalled, "signal %d ended it", x.Signal)
	}
	return sandbox.NewFailure(sandbox.KindExited, "it exited with %d", x.Code)
}

// exited takes a command's exit from dsec-init. It is called by the connection's reader.
func (c *command) exited(x wire.Exit) {
	c.mu.Lock()
	// The answer to Start may still be on its way to who waits for it. And after a new connection the exit may
	// come before the rest of the output: then it comes again after it.
	if !c.launched || c.adopted && c.exit == nil && c.b.log.OutputEnd(c.order) < x.OutputEnd {
		c.exit = &x
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if x.Code == 0 && x.Signal == 0 && !c.b.e.cfg.Record.Sync {
		c.end(x)
		return
	}
	// It may wait: for the disk, or to learn how full it is. Once the edge is closing, dsec-init tells the next.
	c.b.e.spawn(func() { c.end(x) })
}

// end records how the command ended, tells everyone, and then clears up.
func (c *command) end(x wire.Exit) {
	c.mu.Lock()
	ev := evidence{killed: c.killed, signals: c.signals}
	group, base := c.group, c.oomBase
	c.mu.Unlock()
	if group == nil && c.session != nil {
		group = c.session.group
	}
	if group != nil {
		if n, err := group.OOMKills(); err == nil {
			ev.oomKills = n - base
		}
	}
	if (x.Code != 0 || x.Signal != 0) && !x.TimedOut {
		ev.diskFull, ev.poolFull = c.metFullDisk(x)
		ev.store, _ = c.storeFault()
	}
	code := x.Code
	if x.Signal != 0 {
		code = 128 + x.Signal
	}
	result := &dsecv1.CommandResult{
		End: failureProto(classify(x, ev)), ExitCode: code, Signal: x.Signal, OutputBytes: x.OutputEnd, OomKills: int32(max(0, ev.oomKills)),
		DurationSeconds: (time.Duration(x.DurationMicros) * time.Microsecond).Seconds(),
	}
	if c.session != nil && x.SessionEnded {
		c.session.shellEnded()
	}
	c.b.endCommand(c, result)
}

// endWith ends a command by something other than its own exit.
func (b *box) endWith(c *command, f *sandbox.Failure, code, signal int32) {
	b.endCommand(c, &dsecv1.CommandResult{
		End: failureProto(f), ExitCode: code, Signal: signal,
		DurationSeconds: b.e.cfg.Clock.Wall().Sub(c.public.StartedAt.AsTime()).Seconds(),
	})
}

// endCommand records a command's end, once, and tells everyone.
func (b *box) endCommand(c *command, result *dsecv1.CommandResult) {
	b.mu.Lock()
	if b.commands[c.order] != c {
		b.mu.Unlock()
		return
	}
	delete(b.commands, c.order)
	c.mu.Lock()
	ended := proto.CloneOf(c.public)
	ended.Pid, ended.Result, ended.EndedAt = c.pid, result, stamp(b.e.cfg.Clock.Wall())
	group, launched := c.group, c.launched
	c.mu.Unlock()
	err := failpoint.Hit("command.before_end")
	if err == nil {
		var entry *record.Entry
		if entry, err = b.log.EndCommand(ended); entry != nil {
			b.e.hub.publish(b, entry) // here, or another event could overtake it, and who follows would miss it
		}
	}
	conn := b.conn
	_ = b.step(lifecycle.Leave{})
	b.mu.Unlock()
	if err == nil {
		err = b.log.Sync() // together with others that end now
	}
	if err == nil {
		err = failpoint.Hit("command.before_release")
	}
	switch {
	case err != nil:
		// dsec-init keeps the exit: the next edge records it.
		b.e.log.Error("record a command's end", "sandbox", b.id, "command", c.id, "err", err)
	case conn != nil:
		conn.Release(c.id)
	}
	c.mu.Lock()
	c.ended = ended
	c.mu.Unlock()
	c.markStarted()
	close(c.done)
	if c.session != nil {
		c.session.next(c)
	}
	b.e.tidy.later(b.e, func() {
		b.clearGroup(group, !launched)
		b.compact()
	})
}

// leftoverChecks bounds how many groups of earlier commands are looked at when another one ends.
const leftoverChecks = 4

// clearGroup removes the group of an ended command, or keeps it while processes that the command left behind
// live in it. A few of those kept before are looked at as well: nobody polls them. With kill nothing may live on:
// the command was not started properly.
func (b *box) clearGroup(g sandbox.Group, kill bool) {
	b.mu.Lock()
	n := min(len(b.leftover), leftoverChecks)
	check := append([]sandbox.Group(nil), b.leftover[:n]...)
	b.leftover = b.leftover[n:]
	b.mu.Unlock()
	if g != nil {
		check = append(check, g)
	}
	var keep []sandbox.Group
	for _, left := range check {
		empty, err := left.Empty()
		if err == nil && !empty && !(kill && left == g) {
			keep = append(keep, left)
			continue
		}
		if err := left.Remove(); err != nil {
			b.e.log.Debug("remove a command's control group", "sandbox", b.id, "err", err)
		}
	}
	if len(keep) > 0 {
		b.mu.Lock()
		b.leftover = append(b.leftover, keep...)
		b.mu.Unlock()
	}
}

// compact keeps the record within its bound.
func (b *box) compact() {
	if !b.log.Full() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.log.Full() || b.machine.State() == sandbox.StateStopped {
		return
	}
	start := time.Now()
	if err := b.log.Compact(b.entry, b.checkpoint()); err != nil {
		b.e.log.Error("compact the record", "sandbox", b.id, "err", err)
		return
	}
	b.e.stages.took("record.compact", start)
}

// checkpoint is the state for the record. b.mu is held.
func (b *box) checkpoint() *record.Checkpoint {
	s := b.machine.Snapshot(b.e.boot())
	cp := &record.Checkpoint{
		Paused: s.State == sandbox.StatePaused, Stopping: s.State == sandbox.StateStopping, Failure: failureProto(s.Failure),
		HasTtl: s.HasTTL, TtlLeftNanos: int64(s.TTLLeft), IdleNanos: int64(s.Idle),
		TtlFullNanos: int64(s.TTLFull), PausedForNanos: int64(s.PausedFor),
		ReadyWallNanos: b.readyAt.UnixNano(), Handle: b.handle, Network: b.net.asked,
	}
	for _, s := range b.sessions {
		cp.Sessions = append(cp.Sessions, s.proto())
	}
	return cp
}

// unknownCommand is the answer for what is no command's id.
func (b *box) unknownCommand(id string) error {
	return fmt.Errorf("sandbox %s: command %.40q: %w: ids are c1, c2 and so on", b.id, id, record.ErrUnknownCommand)
}

// command reads a command back. Error: record.ErrUnknownCommand.
func (b *box) command(order int64) (*dsecv1.Command, error) {
	c, err := b.log.Command(order)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", b.id, err)
	}
	return c, nil
}

// endedCommand is the refusal to act on a command that has ended; it says when and how.
type endedCommand struct{ c *dsecv1.Command }

func (e *endedCommand) Error() string {
	end := e.c.GetResult().GetEnd()
	return fmt.Sprintf("command %s ended at %s: %s: %s", e.c.Id, e.c.EndedAt.AsTime().UTC().Format(time.RFC3339), end.GetKind(), end.GetMessage())
}

func (e *endedCommand) Unwrap() error { return sandbox.ErrFailedPrecondition }
