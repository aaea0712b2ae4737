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
}

func (m *model) second() {
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
	switch {
	case m.state != sandbox.StateRunning:
	case m.ttl == 0:
		m.state, m.kind = sandbox.StateStopping, sandbox.KindTTLExpired
	case m.idle > 0 && m.holds == 0 && m.quiet >= m.idle:
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
		m.Step(Ready{TTL: sec(ttl), Idle: sec(idle)}, sec(now))
		ref := model{state: sandbox.StateRunning, ttl: ttl, idle: idle}
		if ttl == 0 {
			ref.ttl = -1
		}
		stops := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range rapid.IntRange(0, 8).Draw(t, "passes") {
				now++
				ref.second()
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
				if live {
					ref.state = sandbox.StatePaused
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
					ref.ttl, ref.quiet = int(ttl/time.Second), 0
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
