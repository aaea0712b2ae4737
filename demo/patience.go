package main

import (
	"fmt"
	"time"
)

// patience decides when a command has hung. Machines differ by a factor of a hundred, so it does not count seconds:
// a command that says nothing may use so much of the processor, and may be without any of it for so long. The zero
// value is not ready: see newPatience.
type patience struct {
	cpu  time.Duration // of the sandbox, that may be used in silence
	idle time.Duration // of the clock, in which it must use some

	spokeCPU time.Duration // the sandbox's use when the command last said something
	movedCPU time.Duration // its use when it last grew
	movedAt  time.Time
}

const (
	silentCPU = 10 * time.Minute
	idleWait  = 5 * time.Minute
	moved     = 10 * time.Millisecond // of processor time that counts as some
)

func newPatience(now time.Time, cpu time.Duration) *patience {
	return &patience{cpu: silentCPU, idle: idleWait, spokeCPU: cpu, movedCPU: cpu, movedAt: now}
}

// step takes what is known now: how much of the processor the sandbox has used in all, and whether the command has said
// something since the last step. The error says that it has hung, and how.
func (p *patience) step(now time.Time, cpu time.Duration, spoke bool) error {
	if spoke {
		p.spokeCPU = cpu
	}
	if spoke || cpu-p.movedCPU >= moved {
		p.movedCPU, p.movedAt = cpu, now
	}
	switch {
	case cpu-p.spokeCPU > p.cpu:
		return fmt.Errorf("it used %v of the processor without a word", (cpu - p.spokeCPU).Round(time.Second))
	case now.Sub(p.movedAt) > p.idle:
		return fmt.Errorf("it has done nothing for %v", now.Sub(p.movedAt).Round(time.Second))
	}
	return nil
}
