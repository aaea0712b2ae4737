package dns_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a resolver in a namespace of its own, joined to a test internet, with a sandbox in another.
type node struct {
	t       testing.TB
	inet    *networktest.Internet
	sandbox *networktest.Namespace
	server  *dns.Server
	at      string // the resolver's address, as the sandbox sees it

	mu      sync.Mutex
	program *network.Program
	gen     uint64
	grants  []dns.Grant
	events  []dns.Event
	open    func(dns.Grant) error
	clock   time.Time // of the resolver; it stands still but for later
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
	n.program, n.gen = prog, n.gen+1
}

func (n *node) Open(_ context.Context, g dns.Grant) error {
	n.mu.Lock()
	open := n.open
	n.mu.Unlock()
	if open != nil {
		if err := open(g); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.grants = append(n.grants, g)
	return nil
}

func (n *node) now() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock
}

func (n *node) later(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock = n.clock.Add(d)
}

func (n *node) takeEvents() []dns.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.events
	n.events = nil
	return e
}

func (n *node) takeGrants() []dns.Grant {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.grants
	n.grants = nil
	return g
}

func start(t testing.TB, change func(*dns.Config, *networktest.Internet)) *node {
	t.Helper()
	n := &node{t: t, inet: networktest.New(t), clock: time.Now()}
	router := networktest.NewNamespace(t)
	n.inet.Join(router, "uplink")
	n.sandbox = n.inet.Host() // it reaches the router through the internet; what matters is its address
	cfg := dns.Config{
		Identify: func(src netip.Addr) (dns.Client, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return dns.Client{Key: "sandbox-1", Program: n.program, Generation: n.gen}, n.program != nil
		},
		Opener: n,
		Events: func(e dns.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, e)
		},
		Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return router.Dial(ctx, network, to.String())
		},
		Now: n.now,
		// A busy machine is no reason to ask twice.
		Try: 20 * time.Second, Timeout: 20 * time.Second,
	}
	if change != nil {
		change(&cfg, n.inet)
	}
	var err error
	if n.server, err = dns.New(cfg); err != nil {
		t.Fatal(err)
	}
	// The sandbox asks on its own loopback, where the resolver's sockets are made: no routing is needed.
	pc, err := n.sandbox.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := n.sandbox.Listen("tcp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	n.at = "127.0.0.1:53"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ctx, []net.PacketConn{pc}, []net.Listener{ln}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return n
}

// ask asks by UDP; it fails the test if nothing is answered.
func (n *node) ask(name string, qtype uint16) *miekg.Msg {
	n.t.Helper()
	q := new(miekg.Msg).SetQuestion(miekg.Fqdn(name), qtype)
	q.SetEdns0(1232, false)
	m, err := n.exchange("udp", q)
	if err != nil {
		n.t.Fatalf("ask for %s: %v", name, err)
	}
	return m
}

func (n *node) exchange(network string, q *miekg.Msg) (*miekg.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := n.sandbox.Dial(ctx, network, n.at)
	if err != nil {
		return nil, err
	}
	c := &miekg.Conn{Conn: conn, UDPSize: 4096}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	return c.ReadMsg()
}

func answers(m *miekg.Msg) []netip.Addr {
	var out []netip.Addr
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *miekg.A:
			a, _ := netip.AddrFromSlice(rr.A.To4())
			out = append(out, a)
		case *miekg.AAAA:
			a, _ := netip.AddrFromSlice(rr.AAAA)
			out = append(out, a)
		}
	}
	return out
}

// reason is the extended error's text.
func reason(m *miekg.Msg) string {
	if o := m.IsEdns0(); o != nil {
		for _, e := range o.Option {
			if e, ok := e.(*miekg.EDNS0_EDE); ok {
				return e.ExtraText
			}
		}
	}
	return ""
}
