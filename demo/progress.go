package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// stages of a rollout, in their order.
var stages = []string{"create", "break", "test", "solve", "edit", "test again"}

// progress counts rollouts by the stage they are in.
type progress struct {
	mu     sync.Mutex
	at     []int // by stage
	all    int
	done   int
	failed int
}

func newProgress(all int) *progress { return &progress{at: make([]int, len(stages)), all: all} }

// tracker is one rollout's place in a progress.
type tracker struct {
	p     *progress
	stage int
}

// begin counts a rollout that is in its first stage now.
func (p *progress) begin() *tracker {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[0]++
	return &tracker{p: p}
}

// next notes that the rollout has come to its next stage; there is none after the last.
func (t *tracker) next() {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	if t.stage+1 < len(stages) {
		t.p.at[t.stage]--
		t.stage++
		t.p.at[t.stage]++
	}
}

// end notes that the rollout is over.
func (t *tracker) end(ok bool) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.p.at[t.stage]--
	t.p.done++
	if !ok {
		t.p.failed++
	}
}

// line says it all in one line.
func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	running := 0
	var phases []string
	for i, n := range p.at {
		if running += n; n > 0 {
			phases = append(phases, fmt.Sprintf("%s %d", stages[i], n))
		}
	}
	s := fmt.Sprintf("%d of %d rollouts done, %d running", p.done, p.all, running)
	if p.failed > 0 {
		s += fmt.Sprintf(", %d failed", p.failed)
	}
	if len(phases) > 0 {
		s += ": " + strings.Join(phases, ", ")
	}
	return s
}

const (
	redrawEvery = 300 * time.Millisecond // on a terminal, one line over itself
	printEvery  = 10 * time.Second       // elsewhere, a line more
)

// show writes the progress to w at every tick until quit is closed, and once more then.
func (p *progress) show(w io.Writer, terminal bool, tick <-chan time.Time, quit <-chan struct{}) {
	start := time.Now()
	print := func(end string) {
		s := fmt.Sprintf("%5.0f s  %s", time.Since(start).Seconds(), p.line())
		if terminal {
			s = "\r\x1b[K" + s
		}
		fmt.Fprint(w, s+end)
	}
	for {
		select {
		case <-tick:
			if terminal {
				print("")
			} else {
				print("\n")
			}
		case <-quit:
			print("\n")
			return
		}
	}
}
