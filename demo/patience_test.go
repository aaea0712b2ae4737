package main

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	type step struct {
		wall, cpu time.Duration // since the step before
		spoke     bool
		hung      bool
	}
	steps := func(n int, s step) (out []step) {
		for range n {
			out = append(out, s)
		}
		return out
	}
	for name, c := range map[string][]step{
		"slow machine, speaks":          steps(1000, step{wall: time.Hour, cpu: time.Second, spoke: true}),
		"slow machine, silent, little":  steps(500, step{wall: 4 * time.Minute, cpu: time.Second}),
		"waits in silence, just enough": {{wall: idleWait}, {wall: 0, cpu: moved}, {wall: idleWait}},
		"does nothing":                  {{wall: idleWait, cpu: 0}, {wall: time.Second, hung: true}},
		"next to nothing":               {{wall: idleWait, cpu: moved - 1}, {wall: time.Second, hung: true}},
		"spins":                         {{wall: time.Second, cpu: silentCPU}, {wall: time.Second, cpu: time.Second, hung: true}},
		"spins, spoke before":           {{wall: time.Second, cpu: silentCPU, spoke: true}, {wall: time.Second, cpu: silentCPU}, {cpu: 1, hung: true}},
	} {
		now, cpu := time.Unix(1000, 0), 7*time.Second
		p := newPatience(now, cpu)
		for i, s := range c {
			now, cpu = now.Add(s.wall), cpu+s.cpu
			if err := p.step(now, cpu, s.spoke); (err != nil) != s.hung {
				t.Errorf("%s, step %d: %v", name, i, err)
				break
			}
		}
	}
}
