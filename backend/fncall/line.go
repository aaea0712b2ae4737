package fncall

import (
	"context"
	"fmt"
	"sync"

	"github.com/opendsec/dsec/sandbox"
)

// line shares a number of places out among keys: who waits gets one in turn by key, not by arrival, so that a key with
// thousands of calls takes no more from the others than one with few.
type line struct {
	maxWaiting, maxPerKey int

	mu      sync.Mutex
	free    int
	waiting int
	queues  map[string][]chan struct{}
	turn    []string // keys that wait, the next one first
}

func newLine(places, maxWaiting, maxPerKey int) *line {
	return &line{free: places, maxWaiting: maxWaiting, maxPerKey: maxPerKey, queues: map[string][]chan struct{}{}}
}

// enter waits for a place; leave gives it back. Errors: sandbox.ErrExhausted when too many wait, ctx's.
func (l *line) enter(ctx context.Context, key string) error {
	l.mu.Lock()
	if l.free > 0 {
		l.free--
		l.mu.Unlock()
		return nil
	}
	q := l.queues[key]
	if l.waiting >= l.maxWaiting || len(q) >= l.maxPerKey {
		n := l.waiting
		l.mu.Unlock()
		return fmt.Errorf("%w: %d function calls wait on this node (%d of this key): try again in a moment, or send a batch, which waits", sandbox.ErrExhausted, n, len(q))
	}
	ch := make(chan struct{})
	if len(q) == 0 {
		l.turn = append(l.turn, key)
	}
	l.queues[key] = append(q, ch)
	l.waiting++
	l.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
	}
	if !l.withdraw(key, ch) {
		l.leave() // it was given one meanwhile
	}
	return ctx.Err()
}

// withdraw takes a waiter out of the line; false if it has a place already.
func (l *line) withdraw(key string, ch chan struct{}) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[key]
	for i, c := range q {
		if c == ch {
			l.waiting--
			l.set(key, append(q[:i:i], q[i+1:]...))
			return true
		}
	}
	return false
}

// set replaces a key's queue; l.mu is held.
func (l *line) set(key string, q []chan struct{}) {
	if len(q) > 0 {
		l.queues[key] = q
		return
	}
	delete(l.queues, key)
	for i, k := range l.turn {
		if k == key {
			l.turn = append(l.turn[:i:i], l.turn[i+1:]...)
			return
		}
	}
}

// leave gives a place back, to the first call of the key whose turn it is.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.turn) == 0 {
		l.free++
		return
	}
	key := l.turn[0]
	q := l.queues[key]
	l.waiting--
	close(q[0])
	if len(q) == 1 {
		l.turn = l.turn[1:]
		delete(l.queues, key)
		return
	}
	l.queues[key] = q[1:]
	l.turn = append(l.turn[1:], key)
}

func (l *line) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}
