package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
)

// Server answers sandboxes.
type Server struct {
	cfg      Config
	cache    *cache
	upstream *upstream
	clients  *clients
	flights  chan struct{} // one token for each question that is worked on
	lookups  *lookups

	queries, answered, denied, dropped, limited, failed, unknown atomic.Uint64
}

// New makes a server; Serve runs it.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, cache: newCache(cfg.CacheEntries), clients: newClients(cfg), flights: make(chan struct{}, cfg.AllFlights)}
	s.upstream = &upstream{cfg: cfg}
	s.lookups = &lookups{cfg: cfg, cache: s.cache, upstream: s.upstream}
	return s, nil
}

// Stats counts what happened so far.
func (s *Server) Stats() Stats {
	return Stats{
		Queries: s.queries.Load(), Answered: s.answered.Load(), Denied: s.denied.Load(), Dropped: s.dropped.Load(),
		Limited: s.limited.Load(), Failed: s.failed.Load(), Unknown: s.unknown.Load(),
		Upstream: s.upstream.asked.Load(), CacheHits: s.cache.hits.Load(), Forged: s.upstream.forged.Load(),
	}
}

// Forget drops what is kept about a sandbox that has ended.
func (s *Server) Forget(key string) { s.clients.forget(key) }

// Bounds of what TCP clients may hold.
const (
	maxConns          = 1024
	maxConnsBySource  = 8
	maxQueriesOnConn  = 256
	connReadTimeout   = 5 * time.Second
	connIdleTimeout   = 10 * time.Second
	serverStopTimeout = 10 * time.Second
)

// Serve answers on the sockets given until ctx ends, and closes them. It returns when all questions are done with, or
// with the first socket's error.
func (s *Server) Serve(ctx context.Context, packets []net.PacketConn, streams []net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var servers []*miekg.Server
	for _, pc := range packets {
		servers = append(servers, &miekg.Server{PacketConn: pc, Handler: s.handler(ctx), UDPSize: 4096})
	}
	for _, ln := range streams {
		servers = append(servers, &miekg.Server{
			Listener: newBounded(ln), Handler: s.handler(ctx), MaxTCPQueries: maxQueriesOnConn,
			ReadTimeout: connReadTimeout, IdleTimeout: func() time.Duration { return connIdleTimeout },
		})
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, srv := range servers {
		started := make(chan struct{})
		srv.NotifyStartedFunc = sync.OnceFunc(func() { close(started) })
		ended := make(chan struct{})
		wg.Go(func() {
			defer close(ended)
			err := srv.ActivateAndServe()
			mu.Lock()
			if ctx.Err() == nil && first == nil {
				first = err
				if err == nil {
					first = errors.New("resolver: a socket was closed")
				}
			}
			mu.Unlock()
			cancel()
		})
		wg.Go(func() {
			<-ctx.Done()
			select { // a server that has not started cannot be stopped
			case <-started:
			case <-ended:
				return
			}
			stop, done := context.WithTimeout(context.Background(), serverStopTimeout)
			defer done()
			_ = srv.ShutdownContext(stop)
		})
	}
	if len(servers) == 0 {
		<-ctx.Done()
	}
	wg.Wait()
	s.lookups.wait()
	mu.Lock()
	defer mu.Unlock()
	return first
}

func (s *Server) handler(ctx context.Context) miekg.HandlerFunc {
	return func(w miekg.ResponseWriter, q *miekg.Msg) {
		s.queries.Add(1)
		from, err := netip.ParseAddrPort(w.RemoteAddr().String())
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout+openTimeout)
		defer cancel()
		m := s.answer(ctx, from.Addr().Unmap().WithZone(""), q)
		if m == nil {
			return
		}
		if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
			m.Truncate(udpSize(q))
		}
		_ = w.WriteMsg(m)
	}
}

// udpSize is how large an answer may be: what the client says, within what crosses every network unfragmented.
func udpSize(q *miekg.Msg) int {
	if o := q.IsEdns0(); o != nil {
		return min(max(int(o.UDPSize()), miekg.MinMsgSize), 1232)
	}
	return miekg.MinMsgSize
}

// bounded is a listener that refuses connections beyond a number, of one source and in all.
type bounded struct {
	net.Listener
	mu       sync.Mutex
	bySource map[netip.Addr]int
	all      int
}

func newBounded(ln net.Listener) *bounded {
	return &bounded{Listener: ln, bySource: map[netip.Addr]int{}}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err != nil || !b.enter(from.Addr()) {
			c.Close()
			continue
		}
		return &boundedConn{Conn: c, leave: sync.OnceFunc(func() { b.leave(from.Addr()) })}, nil
	}
}

func (b *bounded) enter(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= maxConns || b.bySource[a] >= maxConnsBySource {
		return false
	}
	b.all++
	b.bySource[a]++
	return true
}

func (b *bounded) leave(a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.bySource[a]--; b.bySource[a] == 0 {
		delete(b.bySource, a)
	}
}

type boundedConn struct {
	net.Conn
	leave func()
}

func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
