package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
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
	t       *testing.T
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
	clock   time.Duration // beyond the machine's
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
	return time.Now().Add(n.clock)
}

func (n *node) later(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock += d
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

func start(t *testing.T, change func(*dns.Config, *networktest.Internet)) *node {
	t.Helper()
	n := &node{t: t, inet: networktest.New(t)}
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

func TestAllowedAndDenied(t *testing.T) {
	n := start(t, nil)
	n.set("example.org", "*.example.net:443,22", "!bad.example.net")
	site := n.inet.Site("example.org", networktest.V4(2), networktest.V6(1))
	n.inet.Site("denied.example")

	m := n.ask("ExAmPlE.org", miekg.TypeA)
	if m.Rcode != miekg.RcodeSuccess || !slices.Equal(answers(m), site.V4) || m.Question[0].Name != "ExAmPlE.org." {
		t.Fatalf("%v", m)
	}
	if ttl := m.Answer[0].Header().Ttl; ttl != 60 {
		t.Errorf("ttl %d", ttl)
	}
	g := n.takeGrants()
	if len(g) != 1 || g[0].Key != "sandbox-1" || g[0].Generation != 1 || g[0].Name != "example.org" || len(g[0].Addresses) != 2 {
		t.Fatalf("grants: %+v", g)
	}
	if o := fmt.Sprint(g[0].Addresses[0].Openings); o != "[tcp 80 check tcp 443 check]" {
		t.Errorf("openings: %s", o)
	}
	if left := time.Until(g[0].Until); left < 60*time.Second || left > 91*time.Second {
		t.Errorf("open for %s", left)
	}
	if m := n.ask("example.org", miekg.TypeAAAA); !slices.Equal(answers(m), site.V6) {
		t.Errorf("%v", m)
	}
	before := len(n.inet.DNS.Queries())
	for _, name := range []string{"denied.example", "bad.example.net", "example.net", "secret.data.attacker.example", "metadata", "use-application-dns.net"} {
		for _, qtype := range []uint16{miekg.TypeA, miekg.TypeAAAA, miekg.TypeTXT, miekg.TypeHTTPS, miekg.TypeANY} {
			m := n.ask(name, qtype)
			if m.Rcode != miekg.RcodeNameError || len(m.Answer) != 0 || reason(m) == "" {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
	if after := len(n.inet.DNS.Queries()); after != before {
		t.Errorf("denied names went upstream: %v", n.inet.DNS.Queries()[before:])
	}
	e := n.takeEvents()
	if len(e) != 25 || e[0].Kind != dns.Denied || e[0].Name != "denied.example" || e[5].Rule != "!bad.example.net" || e[0].Source != network.FromSpec {
		t.Errorf("%d events: %+v", len(e), e)
	}
	if s := n.server.Stats(); s.Denied != 25 || s.Queries < 32 {
		t.Errorf("stats %+v", s)
	}
}

// Types that carry data are not asked upstream, and names of services do not count as denied.
func TestOtherTypesHaveNoData(t *testing.T) {
	n := start(t, nil)
	n.set("example.org", "*.example.net")
	n.inet.Site("example.org")
	for _, qtype := range []uint16{miekg.TypeTXT, miekg.TypeMX, miekg.TypeSRV, miekg.TypeNS, miekg.TypeSOA, miekg.TypeCNAME, miekg.TypeANY, miekg.TypeNULL, miekg.TypeSVCB, miekg.TypeDNSKEY} {
		for _, name := range []string{"example.org", "_http._tcp.example.org", "_x.a.example.net"} {
			if m := n.ask(name, qtype); m.Rcode != miekg.RcodeSuccess || len(m.Answer) != 0 || len(m.Ns) != 1 {
				t.Errorf("%s %s: %v", name, miekg.Type(qtype), m)
			}
		}
	}
	if q := n.inet.DNS.Queries(); len(q) != 0 {
		t.Errorf("asked upstream: %v", q)
	}
	if e := n.takeEvents(); len(e) != 0 {
		t.Errorf("events: %+v", e)
	}
}

func TestLocalNames(t *testing.T) {
	db := netip.MustParseAddr("100.64.0.9")
	n := start(t, func(c *dns.Config, _ *networktest.Internet) {
		c.Local = func(key, name string) ([]netip.Addr, bool) {
			if key == "sandbox-1" && name == "db" {
				return []netip.Addr{db}, true
			}
			return nil, false
		}
	})
	n.set("none")
	for _, c := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"localhost", miekg.TypeA, "[127.0.0.1]"}, {"localhost", miekg.TypeAAAA, "[::1]"}, {"foo.localhost", miekg.TypeA, "[127.0.0.1]"},
		{"db", miekg.TypeA, "[100.64.0.9]"}, {"DB", miekg.TypeA, "[100.64.0.9]"}, {"db", miekg.TypeAAAA, "[]"},
	} {
		if m := n.ask(c.name, c.qtype); m.Rcode != miekg.RcodeSuccess || fmt.Sprint(answers(m)) != c.want {
			t.Errorf("%s: %v", c.name, m)
		}
	}
	m := n.ask("1.0.0.127.in-addr.arpa", miekg.TypePTR)
	if len(m.Answer) != 1 || m.Answer[0].(*miekg.PTR).Ptr != "localhost." {
		t.Errorf("%v", m)
	}
	if m := n.ask("9.0.64.100.in-addr.arpa", miekg.TypePTR); m.Rcode != miekg.RcodeNameError {
		t.Errorf("%v", m)
	}
	if m := n.ask("web", miekg.TypeA); m.Rcode != miekg.RcodeNameError {
		t.Errorf("%v", m)
	}
	if g := n.takeGrants(); len(g) != 0 {
		t.Errorf("grants for local names: %v", g)
	}
}

// Answers to the node's and private ranges are dropped, unless a rule names the range.
func TestRebinding(t *testing.T) {
	n := start(t, nil)
	n.set("*.example.org", "10.1.0.0/16:5432")
	public := netip.MustParseAddr("203.0.113.9")
	for name, bad := range map[string]string{
		"loop": "127.0.0.1", "any": "0.0.0.0", "meta": "169.254.169.254", "private": "192.168.0.1", "other": "10.2.0.1", "nat": "100.64.0.1",
		"loop6": "::1", "mapped": "::ffff:127.0.0.1", "meta6": "fd00:ec2::254", "ula": "fd12::1", "link6": "fe80::1", "nat64": "64:ff9b::a9fe:a9fe", "sixto4": "2002:7f00:1::1",
	} {
		host := name + ".example.org"
		a := netip.MustParseAddr(bad)
		qtype := miekg.TypeAAAA
		if a.Is4() {
			qtype = miekg.TypeA
		}
		n.inet.DNS.Host(host, 60, a)
		m := n.ask(host, qtype)
		if m.Rcode != miekg.RcodeSuccess || len(answers(m)) != 0 || reason(m) == "" {
			t.Errorf("%s: %v", host, m)
		}
		e := n.takeEvents()
		if len(e) != 1 || e[0].Kind != dns.Dropped || len(e[0].Addresses) != 1 {
			t.Errorf("%s: events %+v", host, e)
		}
	}
	if g := n.takeGrants(); len(g) != 0 {
		t.Errorf("opened %v", g)
	}
	n.inet.DNS.Host("mixed.example.org", 60, netip.MustParseAddr("127.0.0.1"), public)
	if m := n.ask("mixed.example.org", miekg.TypeA); !slices.Equal(answers(m), []netip.Addr{public}) {
		t.Errorf("mixed: %v", m)
	}
	n.inet.DNS.Host("db.example.org", 60, netip.MustParseAddr("10.1.0.7"))
	if m := n.ask("db.example.org", miekg.TypeA); fmt.Sprint(answers(m)) != "[10.1.0.7]" {
		t.Errorf("a named range: %v", m)
	}
}

func TestAliases(t *testing.T) {
	n := start(t, nil)
	n.set("www.example.org", "bad.example.org", "loop.example.org", "!tracker.example")
	cdn := n.inet.Site("edge.cdn.example")
	n.inet.DNS.Alias("mid.cdn.example", "edge.cdn.example", 7)
	n.inet.DNS.Alias("www.example.org", "mid.cdn.example", 60)
	m := n.ask("www.example.org", miekg.TypeA)
	if !slices.Equal(answers(m), cdn.V4) || len(m.Answer) != 3 || m.Answer[2].Header().Name != "edge.cdn.example." || m.Answer[0].Header().Ttl != 7 {
		t.Errorf("%v", m)
	}
	if g := n.takeGrants(); len(g) != 1 || g[0].Name != "www.example.org" {
		t.Errorf("%v", g)
	}
	// The alias is not allowed by itself.
	if m := n.ask("edge.cdn.example", miekg.TypeA); m.Rcode != miekg.RcodeNameError {
		t.Errorf("%v", m)
	}
	n.inet.DNS.Host("tracker.example", 60, cdn.V4...)
	n.inet.DNS.Alias("bad.example.org", "tracker.example", 60)
	if m := n.ask("bad.example.org", miekg.TypeA); m.Rcode != miekg.RcodeNameError || !strings.Contains(reason(m), "alias of tracker.example") {
		t.Errorf("an alias of a denied name: %v", m)
	}
	n.inet.DNS.Handle("loop.example.org", func(q *miekg.Msg, _ string) *miekg.Msg {
		m := new(miekg.Msg).SetReply(q)
		for _, pair := range [][2]string{{"loop.example.org.", "a.example."}, {"a.example.", "b.example."}, {"b.example.", "a.example."}} {
			m.Answer = append(m.Answer, &miekg.CNAME{Hdr: miekg.RR_Header{Name: pair[0], Rrtype: miekg.TypeCNAME, Class: miekg.ClassINET, Ttl: 60}, Target: pair[1]})
		}
		return m
	})
	if m := n.ask("loop.example.org", miekg.TypeA); m.Rcode != miekg.RcodeServerFailure {
		t.Errorf("aliases in a circle: %v", m)
	}
}

// Rotating answers with a short or no time to live: the answer that is given is the one that is open.
func TestRotationAndTTL(t *testing.T) {
	n := start(t, nil)
	n.set("cdn.example.org", "zero.example.org", "long.example.org")
	var pool []netip.Addr
	for i := range 8 {
		pool = append(pool, netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)}))
	}
	n.inet.DNS.Rotate("cdn.example.org", 0, 2, pool...)
	seen := map[netip.Addr]bool{}
	for range 4 {
		m := n.ask("cdn.example.org", miekg.TypeA)
		got := answers(m)
		again := answers(n.ask("cdn.example.org", miekg.TypeA)) // within the floor: the same
		if len(got) != 2 || !slices.Equal(got, again) || m.Answer[0].Header().Ttl != 5 {
			t.Fatalf("%v, again %v", m, again)
		}
		for _, g := range n.takeGrants() {
			var open []netip.Addr
			for _, a := range g.Addresses {
				open = append(open, a.Addr)
			}
			if !slices.Equal(open, got) {
				t.Errorf("answered %v, opened %v", got, open)
			}
		}
		for _, a := range got {
			seen[a] = true
		}
		n.later(6 * time.Second)
	}
	if len(seen) != 8 {
		t.Errorf("%d of 8 addresses were answered", len(seen))
	}
	n.inet.DNS.Host("long.example.org", 1<<31-1, pool[0])
	if m := n.ask("long.example.org", miekg.TypeA); m.Answer[0].Header().Ttl != 300 {
		t.Errorf("%v", m)
	}
}

func TestManyAddressesAndNone(t *testing.T) {
	n := start(t, nil)
	n.set("many.example.org", "none.example.org", "gone.example.org")
	var pool []netip.Addr
	for i := range 500 {
		pool = append(pool, netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}))
	}
	// 500 addresses do not fit a packet: the resolver cuts, and is asked again by TCP.
	n.inet.DNS.Handle("many.example.org", func(q *miekg.Msg, network string) *miekg.Msg {
		m := networktest.Addresses(q, q.Question[0].Name, 60, pool)
		if network == "udp" {
			m.Answer, m.Truncated = m.Answer[:20], true
		}
		return m
	})
	m := n.ask("many.example.org", miekg.TypeA)
	if got := answers(m); !slices.Equal(got, pool[:16]) {
		t.Errorf("%d addresses: %v", len(got), got)
	}
	if g := n.takeGrants(); len(g) != 1 || len(g[0].Addresses) != 16 {
		t.Errorf("%v", g)
	}
	n.inet.DNS.Host("none.example.org", 60)
	if m := n.ask("none.example.org", miekg.TypeA); m.Rcode != miekg.RcodeSuccess || len(m.Answer) != 0 || len(m.Ns) != 1 {
		t.Errorf("no addresses: %v", m)
	}
	if m := n.ask("gone.example.org", miekg.TypeA); m.Rcode != miekg.RcodeNameError || len(m.Ns) != 1 {
		t.Errorf("no such name: %v", m)
	}
	if e := n.takeEvents(); len(e) != 0 {
		t.Errorf("events: %+v", e)
	}
}

// Clients without EDNS get at most 512 bytes by UDP, and the rest by TCP.
func TestCutAndTCP(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.MaxAddresses = 100 })
	n.set("many.example.org")
	var pool []netip.Addr
	for i := range 60 {
		pool = append(pool, netip.AddrFrom4([4]byte{8, 8, 8, byte(i)}))
	}
	n.inet.DNS.Host("many.example.org", 60, pool...)
	q := new(miekg.Msg).SetQuestion("many.example.org.", miekg.TypeA)
	m, err := n.exchange("udp", q)
	if err != nil || !m.Truncated || m.IsEdns0() != nil {
		t.Fatalf("%v %v", m, err)
	}
	if m, err = n.exchange("tcp", q); err != nil || m.Truncated || len(answers(m)) != 60 {
		t.Fatalf("%v %v", m, err)
	}
}

func TestHTTPSRecords(t *testing.T) {
	n := start(t, nil)
	n.set("example.org", "foreign.example.org", "port.example.org")
	handle := func(name string, values ...string) {
		n.inet.DNS.Handle(name, func(q *miekg.Msg, _ string) *miekg.Msg {
			m := new(miekg.Msg).SetReply(q)
			for _, v := range values {
				rr, err := miekg.NewRR(q.Question[0].Name + " 60 IN HTTPS " + v)
				if err != nil {
					t.Error(err)
					return nil
				}
				m.Answer = append(m.Answer, rr)
			}
			return m
		})
	}
	handle("example.org", `1 . alpn="h3,h2" ipv4hint="203.0.113.66" ech="AEX+DQBBzQAgACD5u4mJyBYgjvtIMJqC8MsGQ2C3VCIZAqGB2Yx0Kw==" ipv6hint="2001:db8::66"`)
	m := n.ask("example.org", miekg.TypeHTTPS)
	if len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), "1 . alpn=\"h2\"") {
		t.Errorf("%v", m)
	}
	handle("foreign.example.org", `0 other.example.`, `1 other.example. alpn="h2"`)
	if m := n.ask("foreign.example.org", miekg.TypeHTTPS); len(m.Answer) != 0 || m.Rcode != miekg.RcodeSuccess {
		t.Errorf("%v", m)
	}
	handle("port.example.org", `1 . alpn="h2" port="8443"`, `2 . alpn="h3"`)
	if m := n.ask("port.example.org", miekg.TypeHTTPS); len(m.Answer) != 0 || m.Rcode != miekg.RcodeSuccess {
		t.Errorf("%v", m)
	}
	if g := n.takeGrants(); len(g) != 0 {
		t.Errorf("hints opened %v", g)
	}
}

// A resolver that is down: a bounded wait, a clear failure, and the next question works once it is back.
func TestUpstreamDown(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) {
		c.Timeout, c.Try = time.Second, 300*time.Millisecond
	})
	n.set("example.org")
	site := n.inet.Site("example.org")
	n.inet.DNS.Down(true)
	m := n.ask("example.org", miekg.TypeA)
	if m.Rcode != miekg.RcodeServerFailure || !strings.Contains(reason(m), "no upstream resolver answers") {
		t.Fatalf("%v", m)
	}
	if e := n.takeEvents(); len(e) != 1 || e[0].Kind != dns.Failed {
		t.Errorf("%+v", e)
	}
	n.inet.DNS.Down(false)
	n.later(2 * time.Second) // a failure is remembered for one
	if m := n.ask("example.org", miekg.TypeA); !slices.Equal(answers(m), site.V4) {
		t.Errorf("%v", m)
	}
}

// The second upstream is asked when the first is silent or broken.
func TestSecondUpstream(t *testing.T) {
	n := start(t, func(c *dns.Config, i *networktest.Internet) {
		c.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.200:53"), netip.AddrPortFrom(networktest.ResolverV6, 53)}
		c.Try = 300 * time.Millisecond
	})
	n.set("example.org", "other.example.org", "broken.example.org")
	site := n.inet.Site("example.org")
	n.inet.Site("other.example.org")
	if m := n.ask("example.org", miekg.TypeA); !slices.Equal(answers(m), site.V4) {
		t.Errorf("%v", m)
	}
	asked := n.server.Stats().Upstream
	n.ask("other.example.org", miekg.TypeA)
	if now := n.server.Stats().Upstream; now != asked+1 {
		t.Errorf("the silent upstream was asked again: %d questions, then %d", asked, now)
	}
	n.inet.DNS.Handle("broken.example.org", func(q *miekg.Msg, _ string) *miekg.Msg { return new(miekg.Msg).SetRcode(q, miekg.RcodeServerFailure) })
	if m := n.ask("broken.example.org", miekg.TypeA); m.Rcode != miekg.RcodeServerFailure || !strings.Contains(reason(m), "SERVFAIL") {
		t.Errorf("%v", m)
	}
}

// Forgeries are ignored, and records that nobody asked for are not believed.
func TestHostileUpstream(t *testing.T) {
	good, evil := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.66")
	n := start(t, func(c *dns.Config, i *networktest.Internet) {
		c.Upstreams = []netip.AddrPort{i.Hostile(good, evil, "victim.example.org")}
	})
	n.set("example.org", "victim.example.org")
	if m := n.ask("example.org", miekg.TypeA); fmt.Sprint(answers(m)) != "[203.0.113.1]" || len(m.Answer) != 1 || len(m.Extra) != 1 {
		t.Errorf("%v", m)
	}
	if m := n.ask("victim.example.org", miekg.TypeA); fmt.Sprint(answers(m)) != "[203.0.113.1]" {
		t.Errorf("%v", m)
	}
	if s := n.server.Stats(); s.Forged < 3 {
		t.Errorf("%d forgeries were seen", s.Forged)
	}
}

// A resolver that lowers the case of names is asked by TCP.
func TestUpstreamLosesCase(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.Try = 600 * time.Millisecond })
	n.set("a-long-name-with-many-letters.example.org")
	want := netip.MustParseAddr("203.0.113.1")
	n.inet.DNS.Handle("a-long-name-with-many-letters.example.org", func(q *miekg.Msg, _ string) *miekg.Msg {
		q.Question[0].Name = strings.ToLower(q.Question[0].Name)
		return networktest.Addresses(q, q.Question[0].Name, 60, []netip.Addr{want})
	})
	if m := n.ask("a-long-name-with-many-letters.example.org", miekg.TypeA); !slices.Equal(answers(m), []netip.Addr{want}) {
		t.Errorf("%v", m)
	}
	q := n.inet.DNS.Queries()
	if last := q[len(q)-1]; last.Network != "tcp" {
		t.Errorf("asked by %s", last.Network)
	}
}

// Questions upstream cannot be guessed: ids, ports and case differ.
func TestQuestionsAreRandom(t *testing.T) {
	n := start(t, nil)
	n.set("*.example.org")
	ids, ports, mixed := map[uint16]bool{}, map[uint16]bool{}, 0
	for i := range 32 {
		n.ask(fmt.Sprintf("host-number-%d.example.org", i), miekg.TypeA)
	}
	for _, q := range n.inet.DNS.Queries() {
		ids[q.ID], ports[q.From.Port()] = true, true
		if q.Name != strings.ToLower(q.Name) {
			mixed++
		}
	}
	if len(ids) < 30 || len(ports) < 25 || mixed < 30 {
		t.Errorf("of 32: %d ids, %d ports, %d with mixed case", len(ids), len(ports), mixed)
	}
}

// The same name asked for by many at once goes upstream once.
func TestAskedOnce(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.Try, c.Timeout = 20*time.Second, 20*time.Second })
	n.set("example.org")
	release := make(chan struct{})
	n.inet.DNS.Handle("example.org", func(q *miekg.Msg, _ string) *miekg.Msg {
		<-release
		return networktest.Addresses(q, q.Question[0].Name, 60, []netip.Addr{netip.MustParseAddr("203.0.113.1")})
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			m, err := n.exchange("udp", new(miekg.Msg).SetQuestion("example.org.", miekg.TypeA))
			if err != nil || len(answers(m)) != 1 {
				t.Errorf("%v %v", m, err)
			}
		})
	}
	for n.server.Stats().Queries < 20 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if q := n.inet.DNS.Queries(); len(q) != 1 {
		t.Errorf("%d questions upstream", len(q))
	}
}

// The answer waits for the data plane; a policy that changes meanwhile decides anew.
func TestOpener(t *testing.T) {
	n := start(t, nil)
	n.set("example.org")
	n.inet.Site("example.org")
	n.mu.Lock()
	calls := 0
	n.open = func(g dns.Grant) error {
		if calls++; calls == 1 {
			n.set("none")
			return dns.ErrStale
		}
		return nil
	}
	n.mu.Unlock()
	if m := n.ask("example.org", miekg.TypeA); m.Rcode != miekg.RcodeNameError {
		t.Errorf("the new policy does not allow it: %v", m)
	}
	n.set("example.org")
	n.mu.Lock()
	n.open = func(dns.Grant) error { return dns.ErrStale }
	n.mu.Unlock()
	if m := n.ask("example.org", miekg.TypeA); m.Rcode != miekg.RcodeServerFailure {
		t.Errorf("always stale: %v", m)
	}
	n.mu.Lock()
	n.open = func(dns.Grant) error { return errors.New("map is full") }
	n.mu.Unlock()
	m := n.ask("example.org", miekg.TypeA)
	if m.Rcode != miekg.RcodeServerFailure || len(m.Answer) != 0 {
		t.Errorf("not opened: %v", m)
	}
	e := n.takeEvents()
	if last := e[len(e)-1]; last.Kind != dns.Failed || !strings.Contains(last.Why, "map is full") {
		t.Errorf("%+v", e)
	}
}

func TestRateAndEvents(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.Rate = 50 })
	n.set("example.org")
	refused, denied := 0, 0
	for range 400 {
		switch m := n.ask("denied.example", miekg.TypeA); m.Rcode {
		case miekg.RcodeRefused:
			refused++
		case miekg.RcodeNameError:
			denied++
		}
	}
	if refused == 0 || denied < 151 || refused+denied != 400 {
		t.Errorf("%d refused, %d denied", refused, denied)
	}
	before := n.takeEvents()
	if len(before) < 50 || len(before) > 200 {
		t.Errorf("%d events", len(before))
	}
	n.later(time.Minute)
	n.ask("denied.example", miekg.TypeA)
	after := n.takeEvents()
	total := 0
	for _, e := range append(before, after...) {
		total += 1 + e.Suppressed
	}
	if total != 401 {
		t.Errorf("events and those left out are %d, of 401", total)
	}
}

// Under wildcards, names that carry data are refused, and the bytes in new names are bounded.
func TestNamesAsChannel(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.WildBytes, c.WildBurst = 1, 600 })
	n.set("*.example.org", "a-very-long-and-exact-name-0123456789abcdefghijklmnopqrstuvwxyz.example.net")
	for _, name := range []string{
		"nbswy3dpeb3w64tmmqqho2lunaqgcidtmvrxezlu7a.example.org",
		strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 20) + ".example.org",
		strings.Repeat("x.", 12) + "example.org",
	} {
		if m := n.ask(name, miekg.TypeA); m.Rcode != miekg.RcodeNameError || !strings.Contains(reason(m), "wildcard") {
			t.Errorf("%s: %v", name, m)
		}
	}
	if q := n.inet.DNS.Queries(); len(q) != 0 {
		t.Errorf("asked upstream: %v", q)
	}
	asked := 0
	for i := range 60 {
		m := n.ask(fmt.Sprintf("host%d.example.org", i), miekg.TypeA)
		if !strings.Contains(reason(m), "rate") {
			asked++
		}
	}
	if asked < 28 || asked > 40 { // 600 bytes are about 32 names, and a little more with time
		t.Errorf("%d new names went through", asked)
	}
	if m := n.ask("host0.example.org", miekg.TypeA); strings.Contains(reason(m), "rate") {
		t.Errorf("a name that was asked for before: %v", m)
	}
	if m := n.ask("a-very-long-and-exact-name-0123456789abcdefghijklmnopqrstuvwxyz.example.net", miekg.TypeA); strings.Contains(reason(m), "wildcard") {
		t.Errorf("an exact name: %v", m)
	}
}

func TestStrangers(t *testing.T) {
	n := start(t, nil) // no program: nobody is known
	m := n.ask("example.org", miekg.TypeA)
	if m.Rcode != miekg.RcodeRefused {
		t.Errorf("%v", m)
	}
	if s := n.server.Stats(); s.Unknown != 1 {
		t.Errorf("%+v", s)
	}
}

func TestOddQuestions(t *testing.T) {
	n := start(t, nil)
	n.set("open")
	q := new(miekg.Msg).SetQuestion("example.org.", miekg.TypeA)
	q.Question[0].Qclass = miekg.ClassCHAOS
	if m, err := n.exchange("udp", q); err != nil || m.Rcode != miekg.RcodeRefused {
		t.Errorf("class: %v %v", m, err)
	}
	q = new(miekg.Msg).SetQuestion("example.org.", miekg.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().SetVersion(1)
	if m, err := n.exchange("udp", q); err != nil || m.Rcode != miekg.RcodeBadVers {
		t.Errorf("EDNS version: %v %v", m, err)
	}
	q = new(miekg.Msg).SetQuestion("example.org.", miekg.TypeA)
	q.Opcode = miekg.OpcodeUpdate
	if m, err := n.exchange("udp", q); err != nil || m.Rcode == miekg.RcodeSuccess {
		t.Errorf("update: %v %v", m, err)
	}
	// Names with bytes that are no host's.
	for _, name := range []string{`a\000b.example.org`, `a\.b.example.org`, `\195\188.example.org`, `*.example.org`} {
		if m := n.ask(name, miekg.TypeA); m.Rcode == miekg.RcodeSuccess && len(m.Answer) > 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	up := []netip.AddrPort{netip.MustParseAddrPort("198.51.100.53:53")}
	id := func(netip.Addr) (dns.Client, bool) { return dns.Client{}, false }
	for what, c := range map[string]dns.Config{
		"nothing":     {},
		"no upstream": {Identify: id, Opener: &node{}},
		"no port":     {Identify: id, Opener: &node{}, Upstreams: []netip.AddrPort{netip.AddrPortFrom(up[0].Addr(), 0)}},
		"TTLs":        {Identify: id, Opener: &node{}, Upstreams: up, MinTTL: time.Hour},
	} {
		if _, err := dns.New(c); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

func TestBook(t *testing.T) {
	now := time.Unix(1000, 0)
	b := dns.NewBook(func() time.Time { return now })
	a := netip.MustParseAddr("203.0.113.1")
	n := &node{t: t}
	o := b.Opener(n)
	grant := dns.Grant{Key: "k", Name: "example.org", Addresses: []dns.Address{{Addr: a}}, Until: now.Add(10 * time.Second)}
	if err := o.Open(t.Context(), grant); err != nil || len(n.grants) != 1 {
		t.Fatal(err, n.grants)
	}
	if !b.Answered("k", "example.org", a) || b.Answered("k", "example.net", a) || b.Answered("other", "example.org", a) || b.Answered("k", "example.org", a.Next()) {
		t.Error("the book is wrong")
	}
	n.open = func(dns.Grant) error { return errors.New("no") }
	grant.Name = "closed.example"
	if err := o.Open(t.Context(), grant); err == nil || b.Answered("k", "closed.example", a) {
		t.Error("what could not be opened is in the book")
	}
	n.open = nil
	now = now.Add(10 * time.Second)
	if b.Answered("k", "example.org", a) {
		t.Error("still answered after its time")
	}
	for i := range 20000 {
		grant.Name, grant.Until = fmt.Sprint(i), now.Add(time.Minute)
		if err := o.Open(t.Context(), grant); err != nil {
			t.Fatal(err)
		}
	}
	if !b.Answered("k", "19999", a) {
		t.Error("the last one is not there")
	}
	b.Forget("k")
	if b.Answered("k", "19999", a) {
		t.Error("forgotten, and still there")
	}
}
