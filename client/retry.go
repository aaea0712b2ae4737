package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// retry is the interceptor that tries unary calls again where that is safe. Streams are not retried here: Run
// knows where they broke.
type retry struct{ c *Client }

func (r *retry) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		safe := repeatable(req)
		for b := r.c.backoff(); ; {
			resp, err := next(ctx, req)
			if err == nil || connect.IsWireError(err) {
				r.c.reached.Store(true)
			}
			if err == nil || !transient(ctx, err) || (!safe && !notSent(err)) || !b.wait(ctx) {
				return resp, r.c.explain(err)
			}
		}
	}
}

func (r *retry) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (r *retry) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// repeatable tells whether asking twice does the same as asking once.
func repeatable(req connect.AnyRequest) bool {
	switch m := req.Any().(type) {
	case *dsecv1.ForkSandboxRequest:
		return m.GetIdempotencyKey() != ""
	case *dsecv1.CreateSandboxRequest:
		return m.GetIdempotencyKey() != ""
	case *dsecv1.SendInputRequest:
		return m.GetWriter() != ""
	case *dsecv1.TakeScreenshotRequest, *dsecv1.MovePointerRequest:
		return true
	case *dsecv1.SetNetworkRequest: // the same rules twice are the same rules; a condition would fail on its own first effect
		return m.GetIfGeneration() == 0
	case interface{ GetOperationId() string }:
		return m.GetOperationId() != ""
	}
	_, method, _ := strings.Cut(strings.TrimPrefix(req.Spec().Procedure, "/"), "/")
	for _, prefix := range []string{"Get", "List", "Stat", "Stop", "Pause", "Resume", "Extend", "Close", "Resize", "Revoke", "Explain"} {
		if strings.HasPrefix(method, prefix) {
			return true
		}
	}
	return false
}

// transient tells whether the same call may succeed in a moment. ctx is the caller's: net/http also reports "canceled"
// to a request that waited for a connection which another one, canceled meanwhile, was about to open.
func transient(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, context.Canceled), connect.CodeOf(err) == connect.CodeCanceled:
		return true
	}
	if connect.IsWireError(err) {
		return connect.CodeOf(err) == connect.CodeUnavailable
	}
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		connect.CodeOf(err) == connect.CodeUnavailable
}

// notSent tells whether the request never left this machine, so that it cannot have been served.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// backoff waits longer and longer, up to a deadline.
type backoff struct {
	since time.Time // of the last progress
	pause time.Duration
	c     *Client
}

const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

func (c *Client) backoff() *backoff {
	b := &backoff{c: c}
	b.progress()
	return b
}

// progress starts the patience anew.
func (b *backoff) progress() { b.since, b.pause = time.Now(), firstPause }

// until is when patience ends: sooner for a service that has never answered, and it may answer meanwhile.
func (b *backoff) until() time.Time {
	if b.c.reached.Load() {
		return b.since.Add(b.c.o.Patience)
	}
	return b.since.Add(b.c.o.FirstContact)
}

// wait pauses; false when patience or ctx has run out.
func (b *backoff) wait(ctx context.Context) bool {
	if time.Now().Add(b.pause).After(b.until()) {
		return false
	}
	t := time.NewTimer(b.pause/2 + rand.N(b.pause))
	defer t.Stop()
	b.pause = min(2*b.pause, maxPause)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
