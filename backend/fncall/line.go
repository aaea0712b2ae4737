package fncall

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/opendsec/dsec/sandbox"
)

// line shares a number of places out among projects: who waits gets one in turn by project, not by arrival, so that one
// with thousands of calls takes no more from the others than one with few. A project none of whose calls runs gets a place
// beyond the number, if one of those is left: it does not wait for the end of others' calls, which may take minutes.
type line struct {
	maxWaiting, maxPerKey, maxBeyond int

	mu      sync.Mutex
	free    int
	beyond  int // places that are lent beyond the number
	running map[string]int
	waiting int
	queues  map[string][]chan struct{}
	turn    []string // projects that wait, the next one first
}

// newLine makes a line of places, and of others beyond them.
func newLine(places, beyond, maxWaiting, maxPerKey int) *line {
	return &line{free: places, maxBeyond: beyond, maxWaiting: maxWaiting, maxPerKey: maxPerKey, running: map[string]int{}, queues: map[string][]chan struct{}{}}
}

// enter waits for a place; leave gives it back. Errors: sandbox.ErrExhausted when too many wait, ctx's.
func (l *line) enter(ctx context.Context, project string) error {
	l.mu.Lock()
	if l.take(project) {
		l.mu.Unlock()
		return nil
	}
	q := l.queues[project]
	if l.waiting >= l.maxWaiting || len(q) >= l.maxPerKey {
		n := l.waiting
		l.mu.Unlock()
		return fmt.Errorf("%w: %d function calls wait on this node (%d of this project): try again in a moment, or send a batch, which waits", sandbox.ErrExhausted, n, len(q))
	}
	ch := make(chan struct{})
	if len(q) == 0 {
		l.turn = append(l.turn, project)
	}
	l.queues[project] = append(q, ch)
	l.waiting++
	l.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	if !l.withdraw(project, ch) {
		l.leave(project) // it was given one meanwhile
	}
	return ctx.Err()
}

// withdraw takes a waiter out of the line; false if it has a place already.
func (l *line) withdraw(project string, ch chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[project]
	for i, c := range q {
		if c == ch {
			l.waiting--
			l.set(project, append(q[:i:i], q[i+1:]...))
			return true
		}
	}
	return false
}

// set replaces a project's queue; l.mu is held.
func (l *line) set(project string, q []chan struct{}) {
	if len(q) > 0 {
		l.queues[project] = q
		return
	}
	delete(l.queues, project)
	for i, k := range l.turn {
		if k == project {
			l.turn = append(l.turn[:i:i], l.turn[i+1:]...)
			return
		}
	}
}

// take gives a project's call a place that is there at once, if there is one; l.mu is held.
func (l *line) take(project string) bool {
	switch {
	case l.free > 0:
		l.free--
	case l.running[project] == 0 && l.beyond < l.maxBeyond:
		l.beyond++
	default:
		return false
	}
	l.running[project]++
	return true
}

// leave gives back the place of a project's call: to the first that waits of the project whose turn it is, or, while more
// places than there are have been lent, of the next one that has none.
func (l *line) leave(project string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[project]--; l.running[project] <= 0 {
		delete(l.running, project)
	}
	at := 0
	if l.beyond > 0 {
		l.beyond--
		at = slices.IndexFunc(l.turn, func(k string) bool { return l.running[k] == 0 })
	} else {
		l.free++
	}
	if at < 0 || at >= len(l.turn) || !l.take(l.turn[at]) {
		return
	}
	next := l.turn[at]
	q := l.queues[next]
	l.waiting--
	close(q[0])
	l.set(next, q[1:])
	if len(q) > 1 {
		l.turn = append(slices.Delete(l.turn, at, at+1), next)
	}
}

func (l *line) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}
