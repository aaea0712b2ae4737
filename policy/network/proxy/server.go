package proxy

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Server is the proxy.
type Server struct {
	cfg Config

	mu        sync.Mutex
	conns     map[*conn]struct{}
	sandboxes map[string]*sandboxState
	having    map[*sandboxState]struct{} // sandboxes with connections
	giving    int                        // connections that give way

	accepted, refused, limited, failed, cut, ended, sent, received atomic.Uint64
}

// sandboxState is what is counted about one sandbox; guarded by Server.mu.
type sandboxState struct {
	conns  map[*conn]struct{}
	giving int // of conns
	// Ends of allowed connections are apart from the rest, so that neither keeps the other from being recorded.
	ends, others eventState
}

// eventState bounds events, and sums those that are left out.
type eventState struct {
	rate           *rate.Limiter
	suppressed     int
	sent, received uint64
}

// take says whether an event may be passed on, and adds to it what was left out since the last one.
func (s *eventState) take(e *Event) bool {
	if !s.rate.AllowN(e.Time, 1) {
		s.suppressed++
		s.sent += e.Sent
		s.received += e.Received
		return false
	}
	e.Suppressed, e.SuppressedSent, e.SuppressedReceived = s.suppressed, s.sent, s.received
	s.suppressed, s.sent, s.received = 0, 0, 0
	return true
}

// maxSandboxes bounds those that are remembered without a connection.
const maxSandboxes = 1 << 15

// New makes a server; Serve runs it.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, conns: map[*conn]struct{}{}, sandboxes: map[string]*sandboxState{}, having: map[*sandboxState]struct{}{}}, nil
}

// Serve takes connections from the listeners until ctx ends, and closes them. It returns when all connections have
// ended, or a listener's error.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(listeners))
	for i, ln := range listeners {
		wg.Go(func() {
			defer cancel()
			errs[i] = s.accept(ctx, ln, &wg)
		})
	}
	wg.Go(func() { s.watchIdle(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		for _, ln := range listeners {
			ln.Close()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.end("the proxy stops")
		}
	})
	if len(listeners) == 0 {
		<-ctx.Done()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// accept waits longer from one error to the next: descriptors may be used up, and come back.
func (s *Server) accept(ctx context.Context, ln net.Listener, wg *sync.WaitGroup) error {
	wait := 5 * time.Millisecond
	for {
		nc, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			s.cfg.Log.Warn("accept a connection", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = 5 * time.Millisecond
		s.accepted.Add(1)
		f, err := s.cfg.Origin(nc)
		if err != nil {
			s.refused.Add(1)
			s.cfg.Log.Warn("a connection of unknown origin", "error", err)
			nc.Close()
			continue
		}
		c := newConn(s, nc, f)
		if !s.enter(ctx, c) {
			continue
		}
		wg.Go(func() {
			defer s.leave(c)
			defer close(c.told)
			c.serve(ctx)
		})
	}
}

// state finds or makes what is counted about a sandbox. Call it with mu held.
func (s *Server) state(key string) *sandboxState {
	st := s.sandboxes[key]
	if st == nil {
		if len(s.sandboxes) >= maxSandboxes {
			for k, other := range s.sandboxes {
				if len(other.conns) == 0 {
					delete(s.sandboxes, k)
				}
			}
		}
		st = &sandboxState{conns: map[*conn]struct{}{}}
		st.ends.rate, st.others.rate = rate.NewLimiter(50, 500), rate.NewLimiter(10, 100)
		s.sandboxes[key] = st
	}
	return st
}

// recheckWait bounds how long Recheck waits for what it has cut to be gone.
const recheckWait = 2 * time.Second

// Recheck looks again at all connections of a sandbox whose policy has changed, and cuts those that it forbids now. It
// returns how many those are, once their clients have been sent the reset.
func (s *Server) Recheck(key string) int {
	s.mu.Lock()
	var list []*conn
	if st := s.sandboxes[key]; st != nil {
		for c := range st.conns {
			list = append(list, c)
		}
	}
	s.mu.Unlock()
	var cut []*conn
	for _, c := range list {
		if d, ok := c.stillAllowed(); !ok {
			c.cutBy(d)
			cut = append(cut, c)
		}
	}
	if len(cut) == 0 {
		return 0
	}
	late := time.NewTimer(recheckWait)
	defer late.Stop()
	for _, c := range cut {
		select {
		case <-c.gone:
		case <-late.C:
			return len(cut)
		}
	}
	return len(cut)
}

// Part ends all connections of a sandbox whose processes are gone, and returns when their ends are told of, or after a
// bounded wait.
func (s *Server) Part(key string) {
	s.mu.Lock()
	var list []*conn
	if st := s.sandboxes[key]; st != nil {
		list = slices.Collect(maps.Keys(st.conns))
	}
	s.mu.Unlock()
	for _, c := range list {
		c.end("the sandbox has ended")
	}
	late := time.NewTimer(recheckWait)
	defer late.Stop()
	for _, c := range list {
		select {
		case <-c.told:
		case <-late.C:
			return
		}
	}
}

// Forget cuts all connections of a sandbox that has ended, and drops what is kept about it.
func (s *Server) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.sandboxes[key]; st != nil {
		for c := range st.conns {
			c.end("the sandbox has ended")
		}
		if len(st.conns) == 0 {
			delete(s.sandboxes, key)
		}
	}
}

// watchIdle ends connections without a byte for too long.
func (s *Server) watchIdle(ctx context.Context) {
	t := time.NewTicker(tick(s.cfg.IdleTimeout))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		limit := time.Now().Add(-s.cfg.IdleTimeout).UnixNano()
		s.mu.Lock()
		for c := range s.conns {
			if c.active.Load() < limit {
				c.end("idle")
			}
		}
		s.mu.Unlock()
	}
}

// tick is how often a connection's progress is noted.
func tick(idle time.Duration) time.Duration {
	return min(max(idle/4, time.Millisecond), 30*time.Second)
}

// event passes an event on, within the sandbox's rate of them.
func (s *Server) event(e Event) {
	e.Time = s.cfg.Now()
	s.mu.Lock()
	st := s.state(e.Key)
	class := &st.others
	if e.Kind == Ended {
		class = &st.ends
	}
	ok := class.take(&e)
	s.mu.Unlock()
	if ok {
		s.cfg.Events(e)
	}
}

// Connection is one that was let through and is open.
type Connection struct {
	Flow
	Protocol       string
	Names          []string // that it carries: one of TLS, those of all requests of HTTP
	Since          time.Time
	Sent, Received uint64 // bytes so far, by pieces of up to 1 MiB
}

// Connections are a sandbox's, in no order.
func (s *Server) Connections(key string) []Connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.sandboxes[key]
	if st == nil {
		return nil
	}
	var out []Connection
	for c := range st.conns {
		c.mu.Lock()
		if c.out != nil && c.ended == "" {
			out = append(out, Connection{c.flow, c.protocol, slices.Clone(c.names), c.since, c.sent.Load(), c.received.Load()})
		}
		c.mu.Unlock()
	}
	return out
}

// Stats counts what happened so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	return Stats{
		Accepted: s.accepted.Load(), Refused: s.refused.Load(), Limited: s.limited.Load(), Failed: s.failed.Load(),
		Cut: s.cut.Load(), Ended: s.ended.Load(), Sent: s.sent.Load(), Received: s.received.Load(), Open: open,
	}
}
