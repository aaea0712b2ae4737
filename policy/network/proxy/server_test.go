package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/networktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a proxy between a sandbox and a test internet. In the sandbox's namespace all addresses of sites are local,
// and the proxy listens there: a connection to a site arrives at the proxy, with its destination as local address.
type node struct {
	t       testing.TB
	inet    *networktest.Internet
	sandbox *networktest.Namespace
	server  *Server
	stop    func()

	mu       sync.Mutex
	program  *network.Program
	answered map[string]bool // "name address"
	events   []Event
}

func start(t testing.TB, change func(*Config)) *node {
	t.Helper()
	n := &node{t: t, inet: networktest.New(t), sandbox: networktest.NewNamespace(t), answered: map[string]bool{}}
	router := n.inet.Host()
	lo, err := n.sandbox.Netlink().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{"203.0.113.0/24", "2001:db8:1::/48"} {
		prefix, err := netlink.ParseIPNet(dst)
		if err != nil {
			t.Fatal(err)
		}
		const local = 255 // RT_TABLE_LOCAL
		if err := n.sandbox.Netlink().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: prefix, Type: 2, Table: local, Scope: netlink.SCOPE_HOST}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{
		Origin: Transparent(func(netip.Addr) (string, bool) { return "sandbox-1", true }),
		Program: func(string) (*network.Program, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.program, n.program != nil
		},
		Answered: func(key, name string, addr netip.Addr) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.answered[name+" "+addr.String()]
		},
		Dial: func(ctx context.Context, f Flow) (net.Conn, error) {
			return router.Dial(ctx, "tcp", f.Destination.String())
		},
		Events: func(e Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, e)
		},
	}
	if change != nil {
		change(&cfg)
	}
	if n.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	var listeners []net.Listener
	for _, port := range []string{":80", ":443"} {
		ln, err := n.sandbox.Listen("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, ln)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ctx, listeners...) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) set(texts ...string) {
	n.t.Helper()
	p, err := network.ParseTexts(network.Builtin(), texts...)
	if err != nil {
		n.t.Fatal(err)
	}
	prog, err := network.Compile(network.Layer{Source: network.FromSpec, Policy: p})
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.program = prog
}

// answer notes addresses as answered for a name, as the resolver does.
func (n *node) answer(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.answered[name+" "+a.String()] = true
	}
}

// waitEvent waits for the next event of a kind.
func (n *node) waitEvent(kind EventKind) Event {
	n.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		n.mu.Lock()
		for i, e := range n.events {
			if e.Kind == kind {
				n.events = append(n.events[:i:i], n.events[i+1:]...)
				n.mu.Unlock()
				return e
			}
		}
		n.mu.Unlock()
	}
	n.t.Fatalf("no event %q; there are %+v", kind, n.events)
	return Event{}
}

func (n *node) dial(a netip.Addr, port uint16) net.Conn {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := n.sandbox.Dial(ctx, "tcp", netip.AddrPortFrom(a, port).String())
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// client connects every name to one address, on the port that it asks for.
func (n *node) client(a netip.Addr) *http.Client {
	return n.inet.Client(n.sandbox, func(hostport string) string {
		_, port, _ := net.SplitHostPort(hostport)
		return net.JoinHostPort(a.String(), port)
	})
}

func (n *node) get(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return fmt.Sprintf("%d %s", r.StatusCode, b), err
}

// A policy that changes cuts what it forbids now, and nothing else.
func TestRecheck(t *testing.T) {
	n := start(t, nil)
	n.set("one.example", "two.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	two := n.inet.Site("two.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	n.answer("two.example", two.V4...)
	open := func(name string, a netip.Addr) *tls.Conn {
		c := tls.Client(n.dial(a, 443), &tls.Config{ServerName: name, RootCAs: n.inet.CA.Pool})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open("one.example", one.V4[0]), open("two.example", two.V4[0])
	if list := n.server.Connections("sandbox-1"); len(list) != 2 || len(list[0].Names) != 1 || list[0].Protocol != "tls" || list[0].Sent == 0 {
		t.Errorf("%+v", list)
	}
	if got := n.server.Recheck("sandbox-1"); got != 0 {
		t.Errorf("%d were cut by the same policy", got)
	}
	// The address is no longer answered for the name: what is established goes on.
	n.mu.Lock()
	clear(n.answered)
	n.mu.Unlock()
	n.set("one.example")
	if got := n.server.Recheck("sandbox-1"); got != 1 {
		t.Errorf("%d were cut", got)
	}
	if _, err := io.ReadAll(b); err == nil {
		t.Error("the connection to two.example has ended well")
	}
	if e := n.waitEvent(Cut); e.Name != "two.example" || !strings.Contains(e.Why, "no rule allows two.example") {
		t.Errorf("%+v", e)
	}
	fmt.Fprint(a, "GET / HTTP/1.0\r\nHost: one.example\r\n\r\n")
	if got, err := io.ReadAll(a); err != nil || !strings.Contains(string(got), "site=one.example") {
		t.Errorf("%q %v", got, err)
	}
	if got := n.server.Recheck("sandbox-2"); got != 0 {
		t.Errorf("%d of another sandbox", got)
	}
}

func TestLimits(t *testing.T) {
	n := start(t, func(c *Config) { c.MaxSandbox = 2 })
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	a, b := n.dial(one.V4[0], 80), n.dial(one.V4[0], 80)
	for n.server.Stats().Open < 2 {
		time.Sleep(time.Millisecond)
	}
	// It may be reset before it is known to be there.
	if c, err := n.sandbox.Dial(t.Context(), "tcp", netip.AddrPortFrom(one.V4[0], 80).String()); err == nil {
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a third connection ended well")
		}
		c.Close()
	}
	if e := n.waitEvent(Limited); !strings.Contains(e.Why, "too many connections of this sandbox") {
		t.Errorf("%+v", e)
	}
	a.Close()
	for n.server.Stats().Open > 1 {
		time.Sleep(time.Millisecond)
	}
	fmt.Fprint(b, "GET / HTTP/1.0\r\nHost: one.example\r\n\r\n")
	if got, err := io.ReadAll(b); err != nil || !strings.Contains(string(got), "200 OK") {
		t.Errorf("%q %v", got, err)
	}
	if got, err := n.get(n.client(one.V4[0]), "http://one.example/"); err != nil || !strings.HasPrefix(got, "200") {
		t.Errorf("%q %v", got, err)
	}
}

func TestIdle(t *testing.T) {
	n := start(t, func(c *Config) { c.IdleTimeout = 2 * time.Second })
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	c := tls.Client(n.dial(one.V4[0], 443), &tls.Config{ServerName: "one.example", RootCAs: n.inet.CA.Pool})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("an idle connection ended well")
	}
	if e := n.waitEvent(Ended); e.Why != "idle" {
		t.Errorf("%+v", e)
	}
}

func TestNoDestination(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	a := netip.MustParseAddr("203.0.113.99") // nobody has it
	n.answer("one.example", a)
	n.inet.AddAddr(a)
	conn := n.dial(a, 80)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: one.example\r\n\r\n")
	if b, err := io.ReadAll(conn); err == nil {
		t.Errorf("%q", b)
	}
	if e := n.waitEvent(Failed); !strings.Contains(e.Why, "refused") || e.Name != "one.example" {
		t.Errorf("%+v", e)
	}
}

// Stopping ends connections in every state, and forgetting those of one sandbox.
func TestStopAndForget(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	busy := func() *tls.Conn {
		c := tls.Client(n.dial(one.V4[0], 443), &tls.Config{ServerName: "one.example", RootCAs: n.inet.CA.Pool})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := busy()
	n.server.Forget("sandbox-1")
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a forgotten sandbox's connection ended well")
	}
	c, silent := busy(), n.dial(one.V4[0], 80)
	for n.server.Stats().Open < 2 {
		time.Sleep(time.Millisecond)
	}
	n.stop()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a stopped proxy's connection ended well")
	}
	if _, err := io.ReadAll(silent); err == nil {
		t.Error("a stopped proxy's silent connection ended well")
	}
	if s := n.server.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func TestConfigAndOrigin(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
	n := start(t, func(c *Config) { c.Origin = func(net.Conn) (Flow, error) { return Flow{}, errors.New("no sandbox") } })
	n.set("open")
	a := netip.MustParseAddr("203.0.113.1")
	if _, err := n.dial(a, 80).Read(make([]byte, 1)); err == nil {
		t.Error("a connection of nobody is served")
	}
	if s := n.server.Stats(); s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// Events are bounded; those left out are in the next one.
func TestEventsAreBounded(t *testing.T) {
	now := time.Now()
	var mu sync.Mutex
	n := start(t, func(c *Config) {
		c.Now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}
	})
	n.set("one.example")
	a := netip.MustParseAddr("203.0.113.1")
	const all = 130
	for range all {
		conn := n.dial(a, 80)
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: two.example\r\n\r\n")
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
	for n.server.Stats().Refused < all || n.server.Stats().Open > 0 {
		time.Sleep(time.Millisecond)
	}
	n.mu.Lock()
	got := len(n.events)
	n.events = nil
	n.mu.Unlock()
	if got != 100 {
		t.Errorf("%d events", got)
	}
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	conn := n.dial(a, 80)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: two.example\r\n\r\n")
	if e := n.waitEvent(Refused); e.Suppressed != all-100 {
		t.Errorf("%+v", e)
	}
}
