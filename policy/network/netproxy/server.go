package netproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/proxy"
	"github.com/opendsec/dsec/sandbox"
)

// ServerConfig of a Server.
type ServerConfig struct {
	// Dial reaches the internet.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Watch is how often it is looked whether the network is still there (5 s).
	Watch time.Duration
	Log   *slog.Logger
}

// Server has the check of a node, and speaks with its edge.
type Server struct {
	cfg ServerConfig

	mu     sync.Mutex // never held while a Check is called: it calls back
	at     *running   // nil: no network
	sess   *session   // nil: no edge
	busy   map[string]bool
	events keeper
	pings  map[uint64]chan struct{}
	ping   uint64
}

// running is the check of one network.
type running struct {
	*Check
	dir      string
	identity string
	compiler network.Compiler
	stop     context.CancelFunc
	ended    chan struct{}
}

// NewServer makes a server; Serve runs it.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	if cfg.Watch == 0 {
		cfg.Watch = 5 * time.Second
	}
	return &Server{cfg: cfg, busy: map[string]bool{}, pings: map[uint64]chan struct{}{}}
}

// acceptPause is how long a listener without descriptors waits for some.
const acceptPause = 100 * time.Millisecond

// Serve takes edges, of which the newest counts, until ctx ends. With it all connections of sandboxes end.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	wg.Go(func() { s.watch(ctx) })
	var last *session
	for {
		nc, err := ln.Accept()
		if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) { // descriptors may be used up, and come back
			s.cfg.Log.Warn("take an edge's connection", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if last != nil { // its words must not come after the next one's
			last.conn.Close()
			<-last.ended
		}
		if err != nil {
			cancel()
			s.end(nil)
			if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		last = newSession(nc)
		sess := last
		wg.Go(func() { s.serve(sess) })
	}
}

// serve listens to one edge until it or its connection has ended.
func (s *Server) serve(sess *session) {
	defer close(sess.ended)
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		sess.writeAll()
	}()
	err := s.listen(sess)
	s.mu.Lock()
	if s.sess == sess {
		s.sess = nil
	}
	s.mu.Unlock()
	sess.conn.Close()
	close(sess.quit)
	<-writer
	sess.calls.Wait()
	s.mu.Lock()
	for _, f := range sess.out { // for the next one
		if f.Event != nil && s.knows(f.Event.Key) {
			s.events.keep(*f.Event)
		}
	}
	s.mu.Unlock()
	s.cfg.Log.Info("the edge is gone; its sandboxes' connections go on", "why", err)
}

func (s *Server) listen(sess *session) error {
	f, err := read(sess.conn)
	if err != nil {
		return err
	}
	if f.Hello == nil {
		return fmt.Errorf("%w: an edge says first which network it has", sandbox.ErrInvalid)
	}
	if err := s.open(*f.Hello); err != nil {
		return errors.Join(err, write(sess.conn, frame{ID: f.ID, Answer: &answer{Err: err.Error()}}))
	}
	s.mu.Lock()
	s.sess = sess
	sess.push(frame{ID: f.ID, Answer: &answer{}})
	for key := range s.busy {
		sess.push(frame{Busy: &busy{key, true}})
	}
	s.mu.Unlock()
	s.cfg.Log.Info("serves an edge", "network", f.Hello.Dir)
	for {
		f, err := read(sess.conn)
		if err != nil {
			return err
		}
		if err := s.handle(sess, f); err != nil {
			return err
		}
	}
}

// open finds or begins the check of the network that an edge has.
func (s *Server) open(h hello) error {
	if h.Protocol != protocol {
		return fmt.Errorf("%w: the edge speaks version %d, and this process %d", sandbox.ErrUnsupported, h.Protocol, protocol)
	}
	catalog, err := (*network.Catalog)(nil).Extend("the edge's catalogue", h.Catalog)
	if err != nil {
		return err
	}
	compiler := network.Compiler{Catalog: catalog, Node: h.Node}
	identity, err := link.Identity(h.Dir)
	if err != nil {
		return fmt.Errorf("find the router: %w", err)
	}
	s.mu.Lock()
	at := s.at
	if at != nil && at.identity == identity {
		at.compiler = compiler
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.end(at)
	listeners, err := listeners(h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	next := &running{dir: h.Dir, identity: identity, compiler: compiler, stop: cancel, ended: make(chan struct{})}
	if next.Check, err = New(Config{Dial: s.cfg.Dial, Book: dns.NewBook(nil), Sync: s.sync, Events: s.event, Busy: s.setBusy, Log: s.cfg.Log}); err != nil {
		cancel()
		closeAll(listeners)
		return err
	}
	s.mu.Lock()
	s.at = next
	s.mu.Unlock()
	go func() {
		defer close(next.ended)
		if err := next.Serve(ctx, listeners...); err != nil && ctx.Err() == nil {
			s.cfg.Log.Error("the check of names has ended", "err", err)
		}
	}()
	return nil
}

func listeners(h hello) (out []net.Listener, err error) {
	if err := h.Plan.Check(); err != nil {
		return nil, err
	}
	r, err := link.Find(link.Config{Dir: h.Dir, Plan: h.Plan})
	if err != nil {
		return nil, fmt.Errorf("find the router: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, gw := range []netip.Addr{h.Plan.Gateway4(), h.Plan.Gateway6()} {
		ln, err := r.Listen(netip.AddrPortFrom(gw, h.Port), true)
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, ln)
	}
	return out, nil
}

func closeAll(list []net.Listener) {
	for _, ln := range list {
		ln.Close()
	}
}

// end ends a check with all its connections; nil is the present one.
func (s *Server) end(at *running) {
	s.mu.Lock()
	if at == nil {
		at = s.at
	}
	if s.at == at {
		s.at = nil
		s.events = keeper{}
	}
	s.mu.Unlock()
	if at != nil {
		at.stop()
		<-at.ended
	}
}

// watch ends the check of a network that is gone: its sockets would keep the router's namespace.
func (s *Server) watch(ctx context.Context) {
	t := time.NewTicker(s.cfg.Watch)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.mu.Lock()
		at := s.at
		s.mu.Unlock()
		if at == nil {
			continue
		}
		if identity, err := link.Identity(at.dir); identity == at.identity || err != nil && !errors.Is(err, os.ErrNotExist) {
			continue
		}
		s.cfg.Log.Info("the network is gone", "network", at.dir)
		s.end(at)
	}
}

// handle does what an edge says. What takes time is done beside the next.
func (s *Server) handle(sess *session, f frame) error {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	if at == nil {
		return fmt.Errorf("%w: the network is gone", sandbox.ErrNotFound)
	}
	done := func(a answer) { sess.push(frame{ID: f.ID, Answer: &a}) }
	switch {
	case f.Program != nil:
		p, err := at.compiler.Compile(f.Program.Layers...)
		sess.programs[f.Program.ID] = compiled{p, err}
	case f.Drop != 0:
		delete(sess.programs, f.Drop)
	case f.Set != nil:
		made, ok := sess.programs[f.Set.Program]
		if !ok {
			made.err = fmt.Errorf("program %d: %w", f.Set.Program, sandbox.ErrNotFound)
		}
		if made.err != nil {
			done(answer{Err: made.err.Error()})
			return nil
		}
		var a answer
		if !sess.knows(f.Set.Key) {
			a.Entries = at.cfg.Book.Entries(f.Set.Key)
		}
		at.Answered(f.Set.Key, f.Set.Entries...)
		at.put(Place{f.Set.Key, f.Set.Addresses, made.Program})
		s.mu.Lock()
		for _, e := range sess.know(f.Set.Key, &s.events) {
			sess.push(frame{Event: &e})
		}
		s.mu.Unlock()
		sess.calls.Go(func() {
			at.Recheck(f.Set.Key)
			done(a)
		})
	case f.Recheck != "":
		sess.calls.Go(func() {
			at.Recheck(f.Recheck)
			done(answer{})
		})
	case f.Part != "":
		sess.calls.Go(func() {
			at.Part(f.Part)
			done(answer{})
		})
	case f.Forget != nil:
		keys := at.takeOut(*f.Forget)
		s.mu.Lock()
		for _, key := range keys {
			sess.forget(key)
			s.events.drop(key)
		}
		s.mu.Unlock()
		sess.calls.Go(func() {
			for _, key := range keys {
				at.forget(key)
			}
			done(answer{})
		})
	case f.Grant != nil:
		at.Answered(f.Grant.Key, f.Grant.Entries...)
	case f.Stop:
		sess.calls.Go(func() {
			s.end(at)
			done(answer{})
		})
	case f.Pong != 0:
		s.mu.Lock()
		if c := s.pings[f.Pong]; c != nil {
			close(c)
			delete(s.pings, f.Pong)
		}
		s.mu.Unlock()
	}
	return nil
}

// syncWait bounds the wait for the edge's word.
const syncWait = 2 * time.Second

// sync waits until what the edge has said already has arrived. Without an edge there is nothing to wait for.
func (s *Server) sync() {
	s.mu.Lock()
	sess := s.sess
	if sess == nil {
		s.mu.Unlock()
		return
	}
	s.ping++
	id, arrived := s.ping, make(chan struct{})
	s.pings[id] = arrived
	sess.push(frame{Ping: id})
	s.mu.Unlock()
	late := time.NewTimer(syncWait)
	defer late.Stop()
	select {
	case <-arrived:
	case <-sess.quit:
	case <-late.C:
	}
	s.mu.Lock()
	delete(s.pings, id)
	s.mu.Unlock()
}

// event hands an event to the edge that has the sandbox, or keeps it for the next one.
func (s *Server) event(e proxy.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.sess != nil && s.sess.knows(e.Key):
		s.sess.push(frame{Event: &e})
	case s.knows(e.Key):
		s.events.keep(e)
	}
}

// knows tells whether there is such a sandbox. mu is held.
func (s *Server) knows(key string) bool {
	if s.at == nil {
		return false
	}
	_, ok := s.at.program(key)
	return ok
}

func (s *Server) setBusy(key string, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now {
		s.busy[key] = true
	} else {
		delete(s.busy, key)
	}
	if s.sess != nil {
		s.sess.push(frame{Busy: &busy{key, now}})
	}
}
