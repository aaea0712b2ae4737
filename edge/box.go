package edge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/sandbox"
)

// box is one sandbox as the edge keeps it. Lock order: starting, mu, the record's.
type box struct {
	e       *Edge
	id      sandbox.ID
	backend sandbox.Backend
	created *record.Created
	entry   *record.Entry // that of created
	at      time.Time     // of creation
	log     *record.Log
	alarm   alarm // guarded by Edge.timers

	// turn is held by whoever changes the state by an operation: pause, resume.
	turn chan struct{}
	// starting is held shared while a command is being started, so that no freeze comes in between.
	starting sync.RWMutex
	// changing is held while the network is being changed; taken before mu.
	changing sync.Mutex
	// gone is closed when the sandbox has stopped.
	gone chan struct{}
	// hooking is closed when a successor has run what an edge before it had not; nil = nothing is left of it.
	hooking  chan struct{}
	hookFail *sandbox.Failure // set before; nil = all is well

	// linking is held while the channel is opened: a machine serves one connection, and each ends the one before. After turn,
	// before mu.
	linking sync.Mutex

	mu                   sync.Mutex
	machine              lifecycle.Machine
	readyAt              time.Time
	endedAt              time.Time
	handle               []byte
	inst                 sandbox.Instance
	conn                 *aether.Conn
	bare                 bool               // inst has no dsec-init
	commands             map[int64]*command // running ones
	sessions             map[string]*session
	leftover             []sandbox.Group // of ended commands that left processes behind
	netSecond            lifecycle.Now   // in which netNoted network events were recorded
	netLast              bool            // those of its end are being recorded
	netNoted, netLeftOut int
	faults               map[faultKind]int // store faults that are not recorded yet
	faultsSeen           time.Time         // up to when they are
	fullFrom             time.Time         // when its disk was first seen full, since it last had room
	net                  reachability
	secrets              map[string]string  // as given at creation; nil after a restart of the edge
	saveAt               lifecycle.Now      // when to put a paused one away; 0 = no need
	stopSave             context.CancelFunc // of its being put away, under way
	saveTold             string             // why it could not be, as was told since it was paused
	watched              bool               // its machine's end is told without the channel
	ungrouped            bool               // groups of commands were not looked for after a restart
	silentSince          lifecycle.Now      // since when the channel could not be opened in time; 0 = it is open, or was never tried
	retry                lifecycle.Now      // when to try again to reach an instance that could not be recovered; 0 = no need
}

func (e *Edge) newBox(backend sandbox.Backend, log *record.Log) *box {
	return &box{
		e: e, backend: backend, log: log, alarm: alarm{index: -1},
		turn: make(chan struct{}, 1), gone: make(chan struct{}),
	}
}

// step tells the machine what happened. b.mu is held.
func (b *box) step(in lifecycle.Input) error {
	out := b.machine.Step(in, b.e.boot())
	if out.Stop != nil {
		b.beginStop(out.Stop)
	}
	if out.Pause {
		b.e.spawn(b.park)
	}
	b.arm()
	return out.Err
}

// arm sets the alarm to the next deadline. b.mu is held.
func (b *box) arm() {
	at, ok := b.machine.Deadline()
	if b.retry != 0 && (!ok || b.retry < at) {
		at, ok = b.retry, true
	}
	if b.saveAt != 0 && (!ok || b.saveAt < at) {
		at, ok = b.saveAt, true
	}
	if b.machine.State() == sandbox.StateStopped {
		left := b.e.cfg.Retention - b.e.cfg.Clock.Wall().Sub(b.endedAt)
		at, ok = b.e.boot()+min(max(left, 0), b.e.cfg.Retention), true
	}
	if ok {
		b.e.timers.arm(b, at)
	}
}

// fire is called when an alarm has come.
func (b *box) fire() {
	b.mu.Lock()
	if b.machine.State() == sandbox.StateStopped {
		due := b.e.cfg.Clock.Wall().Sub(b.endedAt) >= b.e.cfg.Retention
		if !due {
			b.arm()
		}
		b.mu.Unlock()
		if due {
			b.e.drop(b)
		}
		return
	}
	if b.retry != 0 && b.e.boot() >= b.retry {
		b.retry = 0
		b.e.spawn(func() { b.recoverAgain() })
	}
	if b.saveAt != 0 && b.e.boot() >= b.saveAt {
		b.saveAt = 0
		b.e.spawn(b.putAway)
	}
	_ = b.step(lifecycle.Tick{})
	b.mu.Unlock()
}

// append writes an entry and tells those who follow events.
func (b *box) append(e *record.Entry) error {
	if err := b.log.Append(e); err != nil {
		return notRecorded(fmt.Sprintf("record of sandbox %s", b.id), err)
	}
	b.e.hub.publish(b, e)
	return nil
}

// endedError tells when and why the sandbox ended. b.mu is held.
func (b *box) endedError() error {
	f := b.machine.Failure()
	if f == nil {
		f = sandbox.NewFailure(sandbox.KindInternal, "no reason is recorded")
	}
	when := "is ending"
	if !b.endedAt.IsZero() {
		when = "ended at " + b.endedAt.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("sandbox %s %s: %w: %w", b.id, when, f, sandbox.ErrFailedPrecondition)
}

// proto is the sandbox as the API shows it.
func (b *box) proto() *dsecv1.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &dsecv1.Sandbox{
		Id: string(b.id), State: states[b.machine.State()], Spec: b.created.Spec,
		CreatedAt: stamp(b.at), ReadyAt: stamp(b.readyAt), EndedAt: stamp(b.endedAt),
		End: failureProto(b.machine.Failure()), Layers: b.created.Layers, SecretNames: b.created.SecretNames,
		Edge: string(b.e.cfg.ID), RunningCommands: int32(len(b.commands)), Network: b.net.proto(),
		Snapshots: b.created.Snapshots, Saved: b.saved(),
	}
	if at, ok := b.machine.Expiry(); ok {
		s.ExpiresAt = stamp(b.e.cfg.Clock.Wall().Add(at - b.e.boot()))
	}
	if at, ok := b.machine.PausedUntil(); ok {
		s.PausedUntil = stamp(b.e.cfg.Clock.Wall().Add(at - b.e.boot()))
	}
	return s
}

func (b *box) state() sandbox.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine.State()
}

// ending tells whether the sandbox is ending or has ended.
func (b *box) ending() bool {
	s := b.state()
	return s == sandbox.StateStopping || s == sandbox.StateStopped
}

// channel returns the connection to dsec-init. Error: ErrUnavailable while there is none.
func (b *box) channel() (*aether.Conn, sandbox.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn, b.inst, b.reachable()
}

// reachable tells why there is no channel. b.mu is held.
func (b *box) reachable() error {
	switch s := b.machine.State(); {
	case s == sandbox.StateStopping || s == sandbox.StateStopped:
		return b.endedError()
	case b.bare:
		return fmt.Errorf("sandbox %s has no agent inside, which runs commands and moves files, or none yet: install it in its disk (hack/fullvm-agent.sh); it has a screen, keyboard and pointer: %w", b.id, sandbox.ErrUnsupported)
	case b.conn == nil:
		return fmt.Errorf("sandbox %s cannot be reached at the moment, try again: %w", b.id, sandbox.ErrUnavailable)
	}
	return nil
}

// lock takes the turn to change the state.
func (b *box) lock(ctx context.Context) error {
	b.mu.Lock()
	if b.stopSave != nil {
		b.stopSave()
	}
	b.mu.Unlock()
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s is being paused or resumed: %w", b.id, context.Cause(ctx))
	}
}

func (b *box) unlock() { <-b.turn }

// closeQuietly closes what has no more to say.
func closeQuietly(c *aether.Conn) {
	if c != nil {
		_ = c.Close()
	}
}

var errClosing = fmt.Errorf("the edge is shutting down; sandboxes go on, try again: %w", sandbox.ErrUnavailable)

func ignoreClosed(err error) error {
	if errors.Is(err, errClosing) {
		return nil
	}
	return err
}
