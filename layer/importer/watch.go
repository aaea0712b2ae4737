package importer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// watch bounds the wait for a store whose calls cannot be cancelled, such as a mount that hangs: while work goes on, the
// store is asked for a sign of life.
type watch struct {
	probe func() error // nil = the store bounds its own waiting
	after time.Duration

	mu    sync.Mutex
	asked *question
}

// question is one that is asked of the store; there is one at a time, so that a store that hangs holds one goroutine by it.
type question struct {
	since time.Time
	done  chan struct{}
	err   error // of done
}

func newWatch(store layer.FileStore, after time.Duration) *watch {
	w := &watch{after: after}
	if p, ok := store.(layer.Prober); ok {
		w.probe = p.Probe
	}
	return w
}

// ask waits for a sign of life, until it is late or stop is closed.
func (w *watch) ask(ctx context.Context, stop <-chan struct{}) error {
	w.mu.Lock()
	q := w.asked
	if q == nil {
		q = &question{since: time.Now(), done: make(chan struct{})}
		w.asked = q
		go func() {
			q.err = w.probe()
			w.mu.Lock()
			w.asked = nil
			w.mu.Unlock()
			close(q.done)
		}()
	}
	w.mu.Unlock()
	late := time.NewTimer(max(0, w.after-time.Since(q.since)))
	defer late.Stop()
	select {
	case <-q.done:
		return q.err
	case <-stop:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return fmt.Errorf("%w: the store did not answer within %v", sandbox.ErrUnavailable, w.after)
	}
}

// noStore is why work was cancelled that needed the store. What that breaks in its turn, such as the request whose body it read,
// explains nothing.
type noStore struct{ err error }

func (e *noStore) Error() string { return e.err.Error() }
func (e *noStore) Unwrap() error { return e.err }

// within does work that needs the store. When the store stands still its error is returned and the work, which is left to
// itself, is cancelled: it cleans up when the store answers again, or a later process does.
func within[T any](ctx context.Context, w *watch, work func(context.Context) (T, error)) (T, error) {
	if w.probe == nil {
		return work(ctx)
	}
	var none T
	if err := w.ask(ctx, nil); err != nil {
		return none, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		v   T
		err error
	}
	out, done := make(chan result, 1), make(chan struct{})
	go func() {
		defer close(done)
		v, err := work(ctx)
		out <- result{v, err}
	}()
	tick := time.NewTicker(max(w.after/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-done:
			r := <-out
			return r.v, r.err
		case <-tick.C:
		}
		// Not with ctx: work that is cancelled ends by itself where the store answers.
		if err := w.ask(context.WithoutCancel(ctx), done); err != nil {
			cancel(err)
			return none, &noStore{err}
		}
	}
}
