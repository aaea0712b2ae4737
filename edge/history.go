package edge

import (
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// history is what a record tells of a sandbox's past.
type history struct {
	created  *record.Created
	entry    *record.Entry
	at       time.Time
	machine  lifecycle.Machine
	readyAt  time.Time
	endedAt  time.Time
	handle   []byte
	ready    bool
	ended    bool
	commands map[int64]*commandHistory // running ones
	sessions map[string]*session
	network  *record.NetworkAsked // nil = as created
	faults   time.Time            // up to when store faults are recorded
	hooked   bool                 // what its toolkits have run at the start has ended well
}

type commandHistory struct{ public *dsecv1.Command }

func (h *history) readyOrEnded() bool { return h.ready || h.ended }

// visit takes the next entry.
func (h *history) visit(e *record.Entry) error {
	at, wall := time.Duration(e.BootNanos), time.Unix(0, e.WallNanos)
	switch body := e.Body.(type) {
	case *record.Entry_Created:
		h.created, h.entry, h.at = body.Created, e, wall
	case *record.Entry_Ready:
		r := body.Ready
		h.ready, h.readyAt, h.handle = true, wall, r.Handle
		h.machine.Apply(readyInput(h.created.GetSpec(), time.Duration(r.TtlNanos), time.Duration(r.IdleNanos)), at)
	case *record.Entry_Paused:
		h.machine.Apply(lifecycle.Paused{}, at)
	case *record.Entry_Resumed:
		h.machine.Apply(lifecycle.Resumed{}, at)
	case *record.Entry_Extended:
		h.machine.Apply(lifecycle.Extend{TTL: durationOf(body.Extended.TtlNanos), Idle: durationOf(body.Extended.IdleNanos)}, at)
	case *record.Entry_Stopping:
		h.machine.Apply(lifecycle.Stop{Failure: failureFrom(body.Stopping.Failure)}, at)
	case *record.Entry_Ended:
		h.ended, h.endedAt = true, wall
		f := failureFrom(body.Ended.Failure)
		if h.machine.State() == sandbox.StateCreating {
			h.machine.Apply(lifecycle.Failed{Failure: f}, at)
		}
		h.machine.Apply(lifecycle.Stopped{}, at)
	case *record.Entry_CommandStarted:
		h.commands[body.CommandStarted.Order] = &commandHistory{public: body.CommandStarted}
	case *record.Entry_CommandEnded:
		delete(h.commands, body.CommandEnded.Order)
	case *record.Entry_SessionOpened:
		h.session(body.SessionOpened)
	case *record.Entry_SessionEnded:
		h.session(body.SessionEnded)
	case *record.Entry_NetworkAsked:
		h.network = body.NetworkAsked
	case *record.Entry_Note:
		switch body.Note.Type {
		case storeFaultType:
			h.faults = wall
		case onStartEnded:
			h.hooked = true
		}
	case *record.Entry_Checkpoint:
		h.faults, h.hooked = wall, true // it may stand for such notes
		h.checkpoint(body.Checkpoint, at)
	}
	return nil
}

// readyInput is what a sandbox of a spec, with its defaults filled in, begins its life with.
func readyInput(s *dsecv1.SandboxSpec, ttl, idle time.Duration) lifecycle.Ready {
	return lifecycle.Ready{TTL: ttl, Idle: idle, Pause: s.GetOnTimeout() == dsecv1.OnTimeout_ON_TIMEOUT_PAUSE, MaxPaused: seconds(s.GetPausedSeconds())}
}

func (h *history) checkpoint(cp *record.Checkpoint, at lifecycle.Now) {
	s := lifecycle.Snapshot{
		State: sandbox.StateRunning, Failure: failureFrom(cp.Failure), HasTTL: cp.HasTtl,
		TTLLeft: time.Duration(cp.TtlLeftNanos), Idle: time.Duration(cp.IdleNanos),
		TTLFull: time.Duration(cp.TtlFullNanos), PausedFor: time.Duration(cp.PausedForNanos),
	}
	begun := readyInput(h.created.GetSpec(), 0, 0)
	s.Pause, s.MaxPaused = begun.Pause, begun.MaxPaused
	switch {
	case cp.Stopping:
		s.State = sandbox.StateStopping
	case cp.Paused:
		s.State = sandbox.StatePaused
	}
	h.machine = lifecycle.Restore(s, at)
	h.ready, h.readyAt, h.handle = true, time.Unix(0, cp.ReadyWallNanos), cp.Handle
	if cp.Network != nil {
		h.network = cp.Network
	}
	for _, s := range cp.Sessions {
		h.session(s)
	}
}

func (h *history) session(p *dsecv1.Session) {
	h.sessions[p.Id] = &session{id: p.Id, user: p.User, at: p.CreatedAt.AsTime(), end: failureFrom(p.End)}
}

// restore gives the sandbox its past. Nobody else knows it yet.
func (h *history) restore(b *box) {
	b.machine, b.readyAt, b.endedAt, b.handle = h.machine, h.readyAt, h.endedAt, h.handle
	b.faultsSeen = h.faults
	for _, s := range h.sessions {
		s.b = b
		if h.ended && s.end == nil {
			s.end = h.machine.Failure()
		}
	}
	b.sessions = h.sessions
	h.restoreNetwork(b)
	if h.ended {
		return
	}
	// Idleness starts anew: while no edge was there nobody could use it.
	b.machine = lifecycle.Restore(b.machine.Snapshot(b.e.boot()), b.e.boot())
	for _, ch := range h.commands {
		c := b.newCommand(ch.public)
		b.machine.Apply(lifecycle.Enter{}, b.e.boot())
		if s := b.sessions[ch.public.Spec.GetSessionId()]; s != nil {
			c.session = s
		}
	}
}

// restoreNetwork gives the sandbox what was asked for last.
func (h *history) restoreNetwork(b *box) {
	b.net.asked = h.network
	if b.net.asked == nil {
		b.net.asked = h.created.GetNetwork()
	}
	if b.net.asked != nil {
		return
	}
	old := &record.NetworkAsked{Rules: h.created.GetSpec().GetNetworkRules(), Generation: 1}
	if _, opens, err := b.e.programs.layers(old); err == nil && opens {
		b.net.asked = old
	}
}

func durationOf(nanos *int64) *time.Duration {
	if nanos == nil {
		return nil
	}
	d := time.Duration(*nanos)
	return &d
}
