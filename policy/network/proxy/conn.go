package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/policy/network"
)

// side is one end of a connection: what was read ahead, and the socket.
type side struct {
	conn net.Conn
	br   *bufio.Reader
}

func newSide(c net.Conn) *side { return &side{c, bufio.NewReaderSize(c, 4096)} }

// sudden makes a socket's end an error for its peer, until orderly: the end of the process too. Else a download that is
// cut could pass for a whole one.
func sudden(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
}

// orderly closes a socket that has said all. What is on its way arrives.
func orderly(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(-1)
	}
	c.Close()
}

// reset closes so that the peer sees an error, and not an end.
func (s *side) reset() {
	sudden(s.conn)
	s.conn.Close()
}

// closeWrite passes an end on.
func (s *side) closeWrite() error {
	if t, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return s.conn.Close()
}

// conn is a client's connection and, once it is let through, the one that goes out.
type conn struct {
	s      *Server
	flow   Flow
	client *side
	server *side // nil until dialled; set before both directions run

	since          time.Time
	active         atomic.Int64 // time of the last byte, Unix nanoseconds
	sent, received atomic.Uint64
	over           atomic.Bool // HTTP: the server has ended
	gives          bool        // it gives way; guarded by Server.mu

	mu       sync.Mutex
	out      net.Conn // server's socket, for end
	ended    string   // why it was ended from outside
	cutFor   network.Decision
	cancel   context.CancelFunc
	gone     chan struct{} // closed when both sockets are
	told     chan struct{} // closed when its end is told of
	protocol string
	names    []string // all that were let through
}

// maxNames is how many names the requests on one connection may have.
const maxNames = 64

// refusal is why a connection is refused.
type refusal struct{ network.Decision }

func (r refusal) Error() string { return r.Why }

// refuse makes a refusal that no rule decided.
func refuse(format string, args ...any) error {
	return refusal{network.Decision{Source: network.FromAlways, Why: fmt.Sprintf(format, args...)}}
}

func newConn(s *Server, nc net.Conn, f Flow) *conn {
	c := &conn{s: s, flow: f, client: newSide(nc), since: s.cfg.Now(), gone: make(chan struct{}), told: make(chan struct{})}
	c.touch()
	sudden(nc)
	return c
}

func (c *conn) touch() { c.active.Store(time.Now().UnixNano()) }

// serve handles the connection until it has ended.
func (c *conn) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.cancel = cancel
	if c.ended != "" {
		cancel()
	}
	c.mu.Unlock()
	err := c.run(ctx)
	c.mu.Lock()
	ended, cutFor, out := c.ended, c.cutFor, c.out
	e := Event{Flow: c.flow, Protocol: c.protocol, Sent: c.sent.Load(), Received: c.received.Load()}
	if len(c.names) > 0 {
		e.Name = c.names[len(c.names)-1]
	}
	c.mu.Unlock()
	if out != nil {
		orderly(out)
	}
	orderly(c.client.conn)
	close(c.gone)
	c.s.sent.Add(e.Sent)
	c.s.received.Add(e.Received)
	var r refusal
	switch {
	case cutFor.Why != "":
		c.s.cut.Add(1)
		e.Kind, e.Rule, e.Source, e.Why = Cut, cutFor.Rule, cutFor.Source, cutFor.Why
	case ended == gaveWay:
		c.s.limited.Add(1)
		e.Kind, e.Why = Limited, ended
	case errors.As(err, &r):
		c.s.refused.Add(1)
		e.Kind, e.Rule, e.Source, e.Why = Refused, r.Rule, r.Source, r.Why
		if n, ok := c.lastAsked(err); ok {
			e.Name = n
		}
	case out == nil && err != nil:
		c.s.failed.Add(1)
		e.Kind, e.Why = Failed, err.Error()
	case out == nil:
		return // it was opened and closed without a word
	default:
		c.s.ended.Add(1)
		e.Kind, e.Why = Ended, ended
	}
	c.s.event(e)
}

// named is a refusal of a name.
type named struct {
	refusal
	name string
}

func (n named) Unwrap() error { return n.refusal }

func (c *conn) lastAsked(err error) (string, bool) {
	var n named
	ok := errors.As(err, &n)
	return n.name, ok
}

// run reads what the client says first, and goes on by protocol.
func (c *conn) run(ctx context.Context) error {
	_ = c.client.conn.SetReadDeadline(time.Now().Add(c.s.cfg.HelloTimeout))
	first, err := c.client.br.Peek(1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return refuse("the client says nothing that names where it goes (%v)", plain(err))
	}
	switch b := first[0]; {
	case b == recordHandshake:
		c.setProtocol("tls")
		return c.runTLS(ctx)
	case b >= 'A' && b <= 'Z':
		c.setProtocol("http")
		return c.runHTTP(ctx)
	}
	return refuse("neither TLS nor HTTP/1")
}

// plain is an error without the socket's addresses.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

func (c *conn) setProtocol(p string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol = p
}

// admit checks a name that the client gives, and remembers it for Recheck.
func (c *conn) admit(name string) error {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	c.mu.Lock()
	before := false
	for _, n := range c.names {
		before = before || n == name
	}
	full := len(c.names) >= maxNames
	if !before && !full {
		// Noted before the program is asked: a policy that changes in between finds it.
		c.names = append(c.names, name)
	}
	c.mu.Unlock()
	if !before && full {
		return refuse("requests for more than %d names on one connection", maxNames)
	}
	d, answered := c.ask(name)
	if d.Allowed && answered && !before && !c.s.cfg.Answered(c.flow.Key, name, c.flow.Destination.Addr()) {
		d.Allowed, d.Source, d.Rule = false, network.FromAlways, ""
		d.Why = fmt.Sprintf("%s was not answered for %s", c.flow.Destination.Addr(), name)
	}
	if d.Allowed {
		return nil
	}
	if !before {
		c.mu.Lock()
		c.names = c.names[:len(c.names)-1]
		c.mu.Unlock()
	}
	return named{refusal{d}, name}
}

// ask asks the program that is in force now.
func (c *conn) ask(name string) (d network.Decision, answered bool) {
	p, ok := c.s.cfg.Program(c.flow.Key)
	if !ok {
		return network.Decision{Source: network.FromAlways, Why: "the sandbox has no network policy"}, false
	}
	return p.Admit(name, c.flow.Destination.Addr(), c.flow.Destination.Port())
}

// stillAllowed says whether all names that the connection carries may still pass.
func (c *conn) stillAllowed() (network.Decision, bool) {
	c.mu.Lock()
	names := append([]string(nil), c.names...)
	c.mu.Unlock()
	for _, n := range names {
		if d, _ := c.ask(n); !d.Allowed {
			return d, false
		}
	}
	return network.Decision{}, true
}

// dial connects to where the client wanted to go.
func (c *conn) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.DialTimeout)
	defer cancel()
	nc, err := c.s.cfg.Dial(ctx, c.flow)
	if err != nil {
		c.client.reset()
		return fmt.Errorf("connect to %s: %w", c.flow.Destination, plain(err))
	}
	sudden(nc)
	c.mu.Lock()
	c.out = nc
	ended := c.ended
	c.mu.Unlock()
	if ended != "" {
		nc.Close()
		return errors.New(ended)
	}
	c.server = newSide(nc)
	c.touch()
	return nil
}

// end ends a connection from outside.
func (c *conn) end(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == "" {
		c.ended = why
	}
	if c.cancel != nil {
		c.cancel() // of a dial
	}
	c.client.reset()
	if c.out != nil {
		(&side{conn: c.out}).reset()
	}
}

func (c *conn) cutBy(d network.Decision) {
	c.mu.Lock()
	c.cutFor = d
	c.mu.Unlock()
	c.end("the policy changed: " + d.Why)
}

// drain reads what the client still sends for a moment: closing over unread bytes would take back what it was sent.
func (c *conn) drain() {
	_ = c.client.conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c.client.conn, 1<<20)
}

// addrName says whether a name is an address.
func addrName(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}
