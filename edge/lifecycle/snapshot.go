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
}

// Snapshot returns the machine as it is now.
func (m *Machine) Snapshot(now Now) Snapshot {
	s := Snapshot{State: m.State(), Failure: m.failure, HasTTL: m.ttl, TTLLeft: m.ttlLeft, Idle: m.idle}
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
		idle: s.Idle, idleFrom: at,
	}
}

// Apply replays an input that was accepted when it happened. What may have fallen due since is left to the
// next Step: activity is not recorded, so idleness cannot be reckoned from the record.
func (m *Machine) Apply(in Input, at Now) { m.step(in, at) }
