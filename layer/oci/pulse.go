package oci

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// pulse tells when a registry was last heard of, in all attempts at one thing together. One that takes connections and answers
// nothing is given up when it has been silent for patience; one that sends, however slowly, is not.
type pulse struct {
	patience time.Duration

	mu     sync.Mutex
	last   time.Time
	paused bool
}

func newPulse(patience time.Duration) *pulse { return &pulse{patience: patience, last: time.Now()} }

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// pause stops the clock while somebody else is waited for, resume starts it anew.
func (p *pulse) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
}

func (p *pulse) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused, p.last = false, time.Now()
}

// skip leaves out of the silence what was waited between two attempts: nobody was asked for anything then.
func (p *pulse) skip(waited time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = p.last.Add(waited)
}

// dead tells that nothing was heard for too long: another attempt is of no use.
func (p *pulse) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.paused && time.Since(p.last) >= p.patience
}

// left is how long an attempt that began at a time may go on without a sign of life. It gets half of the patience, so that
// there is a second one, over another connection: the first may be one that something in between has forgotten.
func (p *pulse) left(begun time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		return p.patience
	}
	since := p.last
	if begun.After(since) {
		since = begun
	}
	return min(time.Until(since.Add(p.patience/2)), time.Until(p.last.Add(p.patience)))
}

// try makes one attempt, and ends it when nothing is heard.
func (p *pulse) try(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, pulseKey{}, p))
	done, ended := make(chan struct{}), make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		for {
			wait := p.left(begun)
			if wait <= 0 {
				p.mu.Lock()
				silent := time.Since(p.last).Round(100 * time.Millisecond)
				p.mu.Unlock()
				cancel(fmt.Errorf("%w: the registry sent nothing for %v; is it reachable from the node?", sandbox.ErrUnavailable, silent))
				return
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-done:
				timer.Stop()
				return
			}
		}
	}()
	err := f(ctx)
	close(done)
	<-ended
	cancel(nil)
	return err
}

type pulseKey struct{}

// beat notes a sign of life for the attempt that ctx belongs to.
func beat(ctx context.Context) {
	if p, ok := ctx.Value(pulseKey{}).(*pulse); ok {
		p.beat()
	}
}

// listening notes whatever comes from the other end: a registry, who gives tokens for it, where it keeps its blobs.
type listening struct{ http.RoundTripper }

func (l listening) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		beat(r.Context())
		resp.Body = &heard{resp.Body, r.Context()}
	}
	return resp, err
}

type heard struct {
	io.ReadCloser
	ctx context.Context
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 {
		beat(h.ctx)
	}
	return n, err
}
