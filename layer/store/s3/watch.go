package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// defaultTimeout is for how long a service may stand still where nothing else is said.
const defaultTimeout = 30 * time.Second

// stalled is the error of a request in which nothing moved for too long.
type stalled struct{ after time.Duration }

func (s *stalled) Error() string { return fmt.Sprintf("the store did not answer within %v", s.after) }
func (s *stalled) Unwrap() error { return sandbox.ErrUnavailable }

// watched ends requests in which nothing moves for as long as after: no byte of what is sent, no answer, no byte of it. How
// long a request takes in all is not bounded.
type watched struct {
	next  http.RoundTripper
	after time.Duration
}

func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	why := &stalled{w.after}
	t := &mover{after: w.after, timer: time.AfterFunc(w.after, func() { cancel(why) })}
	r = r.Clone(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &movingBody{ReadCloser: r.Body, mover: t}
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		t.stop()
		cancel(nil)
		if errors.Is(context.Cause(ctx), why) {
			err = why
		}
		return nil, err
	}
	t.moved()
	resp.Body = &movingBody{ReadCloser: resp.Body, mover: t, answer: true, ctx: ctx, cancel: cancel}
	return resp, nil
}

// mover moves a deadline on.
type mover struct {
	after time.Duration

	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

func (m *mover) moved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.timer.Reset(m.after)
	}
}

func (m *mover) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.timer.Stop()
}

// movingBody is what is sent, or the answer, whose reader may take its time: only the service's time counts.
type movingBody struct {
	io.ReadCloser
	mover  *mover
	answer bool
	ctx    context.Context // of an answer
	cancel context.CancelCauseFunc
}

func (b *movingBody) Read(p []byte) (int, error) {
	b.mover.moved()
	n, err := b.ReadCloser.Read(p)
	if b.answer {
		b.mover.pause()
		var why *stalled
		if err != nil && errors.As(context.Cause(b.ctx), &why) {
			err = why
		}
	}
	return n, err
}

// pause stops the clock until something is read again.
func (m *mover) pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timer.Stop()
}

func (b *movingBody) Close() error {
	if b.answer {
		b.mover.stop()
		defer b.cancel(nil)
	}
	return b.ReadCloser.Close()
}
