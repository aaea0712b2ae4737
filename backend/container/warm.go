package container

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// warm keeps shells ready. Makers refill it in the background; who finds it empty waits in line for the next
// shell, as long as its context allows.
type warm struct {
	d   *Driver
	net bool // the shells have a link

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	target  int // how many are to be ready
	ready   []*shell
	waiters []chan claim
	making  int
	claims  int // creations in progress: refilling gives way to them
	makers  int
	idle    *sync.Cond
}

// claim is what a waiter gets.
type claim struct {
	sh  *shell
	err error
}

func newWarm(d *Driver, target, makers int, net bool) *warm {
	ctx, cancel := context.WithCancel(context.Background())
	w := &warm{d: d, target: target, net: net, ctx: ctx, cancel: cancel, makers: makers}
	w.idle = sync.NewCond(&w.mu)
	for range makers {
		w.wg.Add(1)
		go w.maker()
	}
	return w
}

// grow raises the number of shells that are kept ready.
func (w *warm) grow(target int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if target > w.target {
		w.target = target
		w.idle.Broadcast()
	}
}

// maxWaiters bounds the line for shells.
const maxWaiters = 8192

// take returns a ready shell, or the next one made. Errors: sandbox.ErrExhausted when no slot or place in the
// line is left; ctx's.
func (w *warm) take(ctx context.Context) (*shell, error) {
	w.mu.Lock()
	w.claims++
	if n := len(w.ready); n > 0 {
		sh := w.ready[n-1]
		w.ready = w.ready[:n-1]
		w.mu.Unlock()
		return sh, nil
	}
	if w.making == 0 && w.d.slots.full() {
		w.claims--
		w.mu.Unlock()
		return nil, fmt.Errorf("%w: all %d sandboxes of this node are in use: stop some or ask another node", sandbox.ErrExhausted, w.d.cfg.MaxShells)
	}
	if len(w.waiters) >= maxWaiters {
		w.claims--
		w.mu.Unlock()
		return nil, fmt.Errorf("%w: %d creations wait already", sandbox.ErrExhausted, maxWaiters)
	}
	ch := make(chan claim, 1)
	w.waiters = append(w.waiters, ch)
	w.idle.Broadcast()
	w.mu.Unlock()
	select {
	case c := <-ch:
		if c.err != nil {
			w.done()
		}
		return c.sh, c.err
	case <-ctx.Done():
		w.leave(ch)
		return nil, ctx.Err()
	case <-w.ctx.Done():
		w.leave(ch)
		return nil, fmt.Errorf("%w: the node is shutting down", sandbox.ErrUnavailable)
	}
}

// leave takes a waiter out of the line; a shell that it got at the last moment goes back.
func (w *warm) leave(ch chan claim) {
	w.mu.Lock()
	for i, c := range w.waiters {
		if c == ch {
			w.waiters = append(w.waiters[:i], w.waiters[i+1:]...)
			break
		}
	}
	w.mu.Unlock()
	select {
	case c := <-ch:
		if c.sh != nil {
			w.deliver(c.sh)
		}
	default:
	}
	w.done()
}

// done ends a claim: take was successful and the creation is over, either way.
func (w *warm) done() {
	w.mu.Lock()
	w.claims--
	w.idle.Broadcast()
	w.mu.Unlock()
}

// deliver gives a shell to the first in line, or keeps it.
func (w *warm) deliver(sh *shell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiters) > 0 {
		ch := w.waiters[0]
		w.waiters = w.waiters[1:]
		ch <- claim{sh: sh}
		return
	}
	w.ready = append(w.ready, sh)
}

// fail tells the first in line that no shell can be made.
func (w *warm) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiters) > 0 {
		ch := w.waiters[0]
		w.waiters = w.waiters[1:]
		ch <- claim{err: err}
	}
}

// discard takes a dead shell out of the ready ones; false if it is not among them.
func (w *warm) discard(sh *shell) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range w.ready {
		if r == sh {
			w.ready = append(w.ready[:i], w.ready[i+1:]...)
			w.idle.Broadcast()
			return true
		}
	}
	return false
}

func (w *warm) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ready)
}

// wanted tells whether a maker should make one now; w.mu is held.
func (w *warm) wanted() bool {
	if w.making < len(w.waiters) {
		return true // somebody waits for it
	}
	if len(w.ready)+w.making >= w.target+len(w.waiters) {
		return false
	}
	// Refill when no creation would be slowed down, but do not run dry for it.
	return w.claims == 0 || len(w.ready) < w.target/8
}

func (w *warm) maker() {
	defer w.wg.Done()
	backoff := time.Duration(0)
	for {
		w.mu.Lock()
		for w.ctx.Err() == nil && !w.wanted() {
			w.idle.Wait()
		}
		if w.ctx.Err() != nil {
			w.mu.Unlock()
			return
		}
		w.making++
		w.mu.Unlock()

		start := time.Now()
		sh, err := w.d.prepare(w.ctx, w.net)
		if err == nil {
			w.d.observe("prepare_shell", time.Since(start))
			err = w.d.watchShell(w, sh)
		}
		w.mu.Lock()
		w.making--
		w.mu.Unlock()
		if err == nil {
			w.deliver(sh)
			backoff = 0
			continue
		}
		if w.ctx.Err() != nil {
			return
		}
		w.fail(fmt.Errorf("prepare a container: %w", err))
		if !errors.Is(err, sandbox.ErrExhausted) {
			w.d.log.Error("cannot prepare a shell", "err", err)
		}
		backoff = min(max(2*backoff, 50*time.Millisecond), 5*time.Second)
		select {
		case <-time.After(backoff):
		case <-w.ctx.Done():
		case <-w.d.freed: // a slot or space came back
		}
	}
}

// close stops the makers and returns the shells that were ready, for their removal.
func (w *warm) close() []*shell {
	w.cancel()
	w.mu.Lock()
	w.idle.Broadcast()
	w.mu.Unlock()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.ready
	w.ready = nil
	return out
}
