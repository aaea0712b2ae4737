// Package lifecycle decides what a sandbox's state is and when it must end. It is pure: an input and the time
// go in, what must be done comes out; it has no clock, goroutine or I/O.
//
//	creating -> running <-> paused -> stopping -> stopped
//
// Time is the time since the machine booted (CLOCK_BOOTTIME): setting the wall clock changes nothing. The time
// to live counts from readiness and only while the sandbox runs: a pause keeps what is left of it. The idle
// timeout counts from the last activity; while anything holds the sandbox (a request, a running command, a
// stream) or while it is paused, it does not count.
//
// A sandbox may be paused instead of ended when one of the two runs out. The machine asks for that, and hears
// Paused or PauseFailed; what arrives meanwhile may take the reason away. How long a sandbox may stay paused
// has a bound of its own, whoever paused it.
package lifecycle

import (
	"fmt"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Now is a time since boot.
type Now = time.Duration

// Input is something that happened: one of the types below.
type Input interface{ input() }

// The inputs. Pausing, resuming and destroying are reported when they are done.
type (
	// Ready ends creation. TTL, Idle and MaxPaused of 0 mean none. With Pause it is paused when its time runs out.
	Ready struct {
		TTL, Idle, MaxPaused time.Duration
		Pause                bool
	}
	// Failed ends a creation that made nothing.
	Failed struct{ Failure *sandbox.Failure }
	// Paused and Resumed: the freeze, or the thaw, has happened.
	Paused  struct{}
	Resumed struct{}
	// PauseFailed: what Output.Pause asked for could not be done, for this reason.
	PauseFailed struct{ Reason string }
	// Enter begins an activity, Leave ends it.
	Enter struct{}
	Leave struct{}
	// Extend sets what is left of the time to live, and the idle timeout; nil leaves one as it is.
	Extend struct{ TTL, Idle *time.Duration }
	// Stop asks for the end, whoever asks and why.
	Stop struct{ Failure *sandbox.Failure }
	// Stopped: everything of the sandbox is gone.
	Stopped struct{}
	// Tick says only that time has passed.
	Tick struct{}
)

func (Ready) input()       {}
func (Failed) input()      {}
func (Paused) input()      {}
func (Resumed) input()     {}
func (PauseFailed) input() {}
func (Enter) input()       {}
func (Leave) input()       {}
func (Extend) input()      {}
func (Stop) input()        {}
func (Stopped) input()     {}
func (Tick) input()        {}

// Output is what the input caused.
type Output struct {
	// Stop is set once in a sandbox's life: destroy it, for this reason.
	Stop *sandbox.Failure
	// Pause: freeze it, its time has run out. Asked again after PauseFailed.
	Pause bool
	// Err: the input does not fit the state and changed nothing. It wraps sandbox.ErrFailedPrecondition.
	Err error
}

// Machine is the lifecycle of one sandbox. The zero value is a sandbox in creation.
type Machine struct {
	state   sandbox.State // "" = creating
	failure *sandbox.Failure

	ttl     bool          // a time to live is set
	expiry  Now           // while running
	ttlLeft time.Duration // while paused
	ttlFull time.Duration // what was set last

	idle     time.Duration // 0 = none
	idleFrom Now
	holds    int

	pause     bool             // instead of ending
	pausing   *sandbox.Failure // why it is to be paused now; nil = it is not
	failed    int              // attempts
	again     Now              // the next attempt; 0 = one is under way
	maxPaused time.Duration    // 0 = no bound
	pausedAt  Now
}

const (
	pauseRetry    = 5 * time.Second
	pauseAttempts = 12 // then it ends
)

// State returns the state.
func (m *Machine) State() sandbox.State {
	if m.state == "" {
		return sandbox.StateCreating
	}
	return m.state
}

// Failure tells why it ends or ended; nil before.
func (m *Machine) Failure() *sandbox.Failure { return m.failure }

// Expiry is when the time to live runs out; false while paused, ended, or when none is set.
func (m *Machine) Expiry() (Now, bool) {
	return m.expiry, m.ttl && m.State() == sandbox.StateRunning
}

// Idle is the idle timeout; 0 = none.
func (m *Machine) Idle() time.Duration { return m.idle }

// Pausing tells that the sandbox is to be paused because its time has run out.
func (m *Machine) Pausing() bool { return m.pausing != nil }

// PausedUntil is when a paused sandbox ends unless it is resumed; false = it is not paused, or has no bound.
func (m *Machine) PausedUntil() (Now, bool) {
	return m.pausedAt + m.maxPaused, m.State() == sandbox.StatePaused && m.maxPaused > 0
}

// Deadline is the next time at which a Tick would do something if nothing else happened; false = none.
func (m *Machine) Deadline() (Now, bool) {
	switch {
	case m.State() == sandbox.StatePaused:
		return m.PausedUntil()
	case m.State() != sandbox.StateRunning:
		return 0, false
	case m.pausing != nil:
		return m.again, m.again > 0
	}
	deadline, ok := m.expiry, m.ttl
	if m.idle > 0 && m.holds == 0 {
		if d := m.idleFrom + m.idle; !ok || d < deadline {
			deadline, ok = d, true
		}
	}
	return deadline, ok
}

// Step takes an input at a time. What fell due before comes first: an input that arrives after the expiry
// finds the sandbox ending, even when no Tick came in between.
func (m *Machine) Step(in Input, now Now) Output {
	due := m.due(now)
	if _, tick := in.(Tick); tick {
		return due
	}
	out := m.step(in, now)
	if out.Stop == nil {
		out.Stop = due.Stop
	}
	out.Pause = (out.Pause || due.Pause) && m.pausing != nil
	return out
}

func (m *Machine) due(now Now) Output {
	if d, ok := m.Deadline(); !ok || now < d {
		return Output{}
	}
	if m.State() == sandbox.StatePaused {
		return m.stop(sandbox.NewFailure(sandbox.KindTTLExpired, "it was paused for %v, as long as it may be", m.maxPaused))
	}
	if m.pausing != nil {
		m.again = 0
		return Output{Pause: true}
	}
	why := m.why()
	if !m.pause {
		return m.stop(why)
	}
	m.pausing = why
	return Output{Pause: true}
}

// why tells what fell due. Seen late, both may have: the first one is the reason.
func (m *Machine) why() *sandbox.Failure {
	if m.idle == 0 || m.holds > 0 || m.ttl && m.expiry <= m.idleFrom+m.idle {
		return sandbox.NewFailure(sandbox.KindTTLExpired, "its time to live ran out")
	}
	return sandbox.NewFailure(sandbox.KindIdleExpired, "no activity for %v", m.idle)
}

// unpause takes the reason for a pause away.
func (m *Machine) unpause() { m.pausing, m.failed, m.again = nil, 0, 0 }

func (m *Machine) stop(f *sandbox.Failure) Output {
	m.state, m.failure = sandbox.StateStopping, f
	m.unpause()
	return Output{Stop: f}
}

func (m *Machine) step(in Input, now Now) Output {
	state := m.State()
	switch in := in.(type) {
	case Ready:
		if state != sandbox.StateCreating {
			return m.refuse("become ready")
		}
		m.state, m.idle, m.idleFrom = sandbox.StateRunning, in.Idle, now
		m.pause, m.maxPaused, m.ttlFull = in.Pause, in.MaxPaused, in.TTL
		if m.ttl = in.TTL > 0; m.ttl {
			m.expiry = now + in.TTL
		}
	case Failed:
		if state != sandbox.StateCreating {
			return m.refuse("fail to be created")
		}
		m.state, m.failure = sandbox.StateStopped, in.Failure
	case Paused:
		if state == sandbox.StatePaused {
			return Output{}
		}
		if state != sandbox.StateRunning {
			return m.refuse("be paused")
		}
		m.state, m.ttlLeft, m.pausedAt = sandbox.StatePaused, m.expiry-now, now
		if m.ttlLeft <= 0 { // it ran out: what comes after has as much again
			m.ttlLeft = m.ttlFull
		}
		m.unpause()
	case Resumed:
		if state == sandbox.StateRunning {
			return Output{}
		}
		if state != sandbox.StatePaused {
			return m.refuse("be resumed")
		}
		m.state, m.expiry, m.idleFrom = sandbox.StateRunning, now+m.ttlLeft, now
	case PauseFailed:
		if m.pausing == nil {
			return Output{}
		}
		if m.failed++; m.failed >= pauseAttempts {
			return m.stop(sandbox.NewFailure(m.pausing.Kind, "%s, and it could not be paused: %s", m.pausing.Message, in.Reason))
		}
		m.again = now + pauseRetry
	case Enter:
		if state != sandbox.StateRunning && state != sandbox.StatePaused {
			return m.refuse("be used")
		}
		m.holds++
		if m.pausing != nil && m.pausing.Kind == sandbox.KindIdleExpired {
			m.unpause()
		}
	case Leave:
		if m.holds > 0 {
			m.holds--
		}
		m.idleFrom = now
	case Extend:
		return m.extend(in, now)
	case Stop:
		if state == sandbox.StateStopping || state == sandbox.StateStopped {
			return Output{}
		}
		return m.stop(in.Failure)
	case Stopped:
		m.state = sandbox.StateStopped
	case Tick:
	}
	return Output{}
}

func (m *Machine) extend(in Extend, now Now) Output {
	switch m.State() {
	case sandbox.StateRunning:
		if in.TTL != nil {
			m.ttl, m.expiry, m.ttlFull = true, now+*in.TTL, *in.TTL
		}
	case sandbox.StatePaused:
		if in.TTL != nil {
			m.ttl, m.ttlLeft, m.ttlFull = true, *in.TTL, *in.TTL
		}
		m.pausedAt = now // who extends it wants it kept
	default:
		return m.refuse("be extended")
	}
	if in.Idle != nil {
		m.idle = *in.Idle
	}
	m.idleFrom = now
	if m.pausing != nil && (in.TTL != nil || m.pausing.Kind == sandbox.KindIdleExpired) {
		m.unpause()
	}
	return Output{}
}

func (m *Machine) refuse(what string) Output {
	return Output{Err: fmt.Errorf("a sandbox that is %s cannot %s: %w", m.State(), what, sandbox.ErrFailedPrecondition)}
}
