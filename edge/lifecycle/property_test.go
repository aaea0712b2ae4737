package lifecycle

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opendsec/dsec/sandbox"
)

// model is the naive opposite of Machine: it walks time second by second and only ever decrements.
type model struct {
	state     sandbox.State
	kind      sandbox.Kind
	ttl, idle int // seconds left to live (-1 = none), idle timeout (0 = none)
	quiet     int // seconds since the last activity
	holds     int

	pause     bool // instead of ending
	full      int  // what ttl was set to last
	maxPaused int  // 0 = no bound
	paused    int  // seconds
}

func (m *model) second() {
	if m.state == sandbox.StatePaused {
		if m.paused++; m.maxPaused > 0 && m.paused >= m.maxPaused {
			m.state, m.kind = sandbox.StateStopping, sandbox.KindTTLExpired
		}
		return
	}
	if m.state != sandbox.StateRunning {
		return
	}
	m.quiet++
	if m.ttl > 0 {
		m.ttl--
	}
	m.check()
}

func (m *model) check() {
	idle := m.idle > 0 && m.holds == 0 && m.quiet >= m.idle
	switch {
	case m.state != sandbox.StateRunning:
	case m.pause && (m.ttl == 0 || idle): // done at once, as the test does it
		if m.ttl == 0 {
			m.ttl = m.full
		}
		m.state, m.paused = sandbox.StatePaused, 0
	case m.ttl == 0:
		m.state, m.kind = sandbox.StateStopping, sandbox.KindTTLExpired
	case idle:
		m.state, m.kind = sandbox.StateStopping, sandbox.KindIdleExpired
	}
	if m.holds > 0 {
		m.quiet = 0
	}
}

func TestMachineMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := rapid.IntRange(0, 30).Draw(t, "ttl")
		idle := rapid.IntRange(0, 10).Draw(t, "idle")
		var m Machine
		now := rapid.IntRange(0, 1000).Draw(t, "boot")
		sec := func(n int) time.Duration { return time.Duration(n) * time.Second }
		pause, maxPaused := rapid.Bool().Draw(t, "pause"), rapid.IntRange(0, 15).Draw(t, "maxPaused")
		m.Step(Ready{TTL: sec(ttl), Idle: sec(idle), Pause: pause, MaxPaused: sec(maxPaused)}, sec(now))
		ref := model{state: sandbox.StateRunning, ttl: ttl, full: ttl, idle: idle, pause: pause, maxPaused: maxPaused}
		if ttl == 0 {
			ref.ttl = -1
		}
		stops := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range rapid.IntRange(0, 8).Draw(t, "passes") {
				now++
				ref.second()
				if pause { // the edge freezes it as soon as it is asked to
					out := m.Step(Tick{}, sec(now))
					if out.Stop != nil {
						stops++
					}
					if out.Pause {
						m.Step(Paused{}, sec(now))
					}
				}
			}
			var in Input
			live := ref.state == sandbox.StateRunning || ref.state == sandbox.StatePaused
			switch rapid.SampledFrom([]string{"enter", "leave", "pause", "resume", "extend", "tick", "restore"}).Draw(t, "input") {
			case "enter":
				in = Enter{}
				if live {
					ref.holds++
					ref.quiet = 0
				}
			case "leave":
				if ref.holds == 0 {
					continue
				}
				in = Leave{}
				ref.holds--
				ref.quiet = 0
			case "pause":
				in = Paused{}
				if ref.state == sandbox.StateRunning {
					ref.state, ref.paused = sandbox.StatePaused, 0
				}
			case "resume":
				in = Resumed{}
				if ref.state == sandbox.StatePaused {
					ref.state, ref.quiet = sandbox.StateRunning, 0
				}
			case "extend":
				ttl := sec(rapid.IntRange(1, 20).Draw(t, "newttl"))
				in = Extend{TTL: &ttl}
				if live {
					ref.ttl, ref.quiet, ref.paused = int(ttl/time.Second), 0, 0
					ref.full = ref.ttl
				}
			case "restore":
				// A restart of the edge: nothing holds the sandbox, and idleness starts anew.
				if m.Step(Tick{}, sec(now)).Stop != nil {
					stops++
				}
				m = Restore(m.Snapshot(sec(now)), sec(now))
				ref.holds, ref.quiet = 0, 0
				in = Tick{}
			default:
				in = Tick{}
			}
			if out := m.Step(in, sec(now)); out.Stop != nil {
				stops++
			}
			if m.State() != ref.state {
				t.Fatalf("at %ds after %T: machine is %s, model %s", now, in, m.State(), ref.state)
			}
			if ref.state == sandbox.StateStopping && m.Failure().Kind != ref.kind {
				t.Fatalf("ended as %s, model %s", m.Failure().Kind, ref.kind)
			}
			if d, ok := m.Deadline(); ok && d <= sec(now) {
				t.Fatalf("deadline %v has passed at %ds", d, now)
			}
		}
		if (stops == 1) != (m.State() == sandbox.StateStopping) || stops > 1 {
			t.Fatalf("asked to stop %d times in state %s", stops, m.State())
		}
	})
}
