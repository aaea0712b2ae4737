package lifecycle

import (
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Snapshot is a machine as a plain value, for the record. Times are remainders, so that it does not depend on
// when it is restored.
type Snapshot struct {
	State   sandbox.State
	Failure *sandbox.Failure
	HasTTL  bool
	TTLLeft time.Duration
	Idle    time.Duration
	// TTLFull is the time to live that was set last, PausedFor how long it has been paused.
	TTLFull, PausedFor time.Duration
	// Pause and MaxPaused as in Ready.
	Pause     bool
	MaxPaused time.Duration
}

// Snapshot returns the machine as it is now.
func (m *Machine) Snapshot(now Now) Snapshot {
	s := Snapshot{State: m.State(), Failure: m.failure, HasTTL: m.ttl, TTLLeft: m.ttlLeft, Idle: m.idle, TTLFull: m.ttlFull, Pause: m.pause, MaxPaused: m.maxPaused}
	if s.State == sandbox.StatePaused {
		s.PausedFor = now - m.pausedAt
	}
	if s.State == sandbox.StateRunning {
		s.TTLLeft = m.expiry - now
	}
	return s
}

// Restore makes a machine that goes on where the snapshot, taken at `at`, was. Nothing holds it.
func Restore(s Snapshot, at Now) Machine {
	return Machine{
		state: s.State, failure: s.Failure,
		ttl: s.HasTTL, expiry: at + s.TTLLeft, ttlLeft: s.TTLLeft,
		ttlFull: s.TTLFull, idle: s.Idle, idleFrom: at,
		pause: s.Pause, maxPaused: s.MaxPaused, pausedAt: at - s.PausedFor,
	}
}

// Apply replays an input that was accepted when it happened. What may have fallen due since is left to the
// next Step: activity is not recorded, so idleness cannot be reckoned from the record.
func (m *Machine) Apply(in Input, at Now) { m.step(in, at) }
