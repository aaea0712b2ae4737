package networktest

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// DNS is a resolver whose answers the test scripts. It answers in the case that it is asked in, as resolvers do.
type DNS struct {
	mu      sync.Mutex
	names   map[string]Answer
	others  Answer
	queries []Query
	down    bool
}

// Query is a question that arrived.
type Query struct {
	Name    string // as sent, case included, with the trailing dot
	Type    uint16
	Network string // udp or tcp
	From    netip.AddrPort
	ID      uint16
}

// Answer makes the answer to a question. It may change it in any way; nil sends none.
type Answer func(q *dns.Msg, network string) *dns.Msg

func startDNS(t testing.TB, n *Namespace, addrs ...netip.Addr) *DNS {
	t.Helper()
	d := &DNS{names: map[string]Answer{}}
	for _, a := range addrs {
		at := netip.AddrPortFrom(a, 53).String()
		pc, err := n.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := n.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		runDNS(t, &dns.Server{PacketConn: pc, Handler: d.handler("udp")})
		runDNS(t, &dns.Server{Listener: ln, Handler: d.handler("tcp")})
	}
	return d
}

// runDNS serves until the test ends.
func runDNS(t testing.TB, s *dns.Server) {
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	select {
	case <-started:
	case err := <-done:
		t.Fatalf("resolver: %v", err)
	}
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-done
	})
}

func (d *DNS) handler(network string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		if len(q.Question) != 1 {
			return
		}
		from, _ := netip.ParseAddrPort(w.RemoteAddr().String())
		d.mu.Lock()
		d.queries = append(d.queries, Query{q.Question[0].Name, q.Question[0].Qtype, network, from, q.Id})
		answer, down := d.names[key(q.Question[0].Name)], d.down
		if answer == nil {
			answer = d.others
		}
		d.mu.Unlock()
		if down {
			return
		}
		var m *dns.Msg
		if answer != nil {
			m = answer(q, network)
		} else {
			m = NXDomain(q)
		}
		if m != nil {
			_ = w.WriteMsg(m)
		}
	}
}

func key(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// Handle answers all questions about a name by f.
func (d *DNS) Handle(name string, f Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[key(name)] = f
}

// Default answers questions about names that are not listed, which do not exist otherwise.
func (d *DNS) Default(f Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.others = f
}

// Host lists a name with addresses, all of them in every answer. ttl is in seconds.
func (d *DNS) Host(name string, ttl uint32, addrs ...netip.Addr) {
	d.Handle(name, func(q *dns.Msg, _ string) *dns.Msg { return Addresses(q, q.Question[0].Name, ttl, addrs) })
}

// Rotate lists a name whose answers are the next n addresses of a pool each time, as content networks do.
func (d *DNS) Rotate(name string, ttl uint32, n int, pool ...netip.Addr) {
	var mu sync.Mutex
	at := 0
	d.Handle(name, func(q *dns.Msg, _ string) *dns.Msg {
		var family []netip.Addr
		for _, a := range pool {
			if a.Is4() == (q.Question[0].Qtype == dns.TypeA) {
				family = append(family, a)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		var out []netip.Addr
		for i := range min(n, len(family)) {
			out = append(out, family[(at+i)%len(family)])
		}
		at += n
		return Addresses(q, q.Question[0].Name, ttl, out)
	})
}

// Alias lists a name as another name's alias; the answer holds the other's addresses as well.
func (d *DNS) Alias(name, target string, ttl uint32) {
	d.Handle(name, func(q *dns.Msg, network string) *dns.Msg {
		d.mu.Lock()
		next := d.names[key(target)]
		d.mu.Unlock()
		m := new(dns.Msg)
		m.SetReply(q)
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(q.Question[0].Name, dns.TypeCNAME, ttl), Target: dns.Fqdn(target)})
		if next != nil {
			inner := q.Copy()
			inner.Question[0].Name = dns.Fqdn(target)
			if a := next(inner, network); a != nil {
				m.Answer = append(m.Answer, a.Answer...)
			}
		}
		return m
	})
}

// Down makes the resolver silent, or lets it answer again.
func (d *DNS) Down(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

// Queries are the questions so far.
func (d *DNS) Queries() []Query {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.queries)
}

func header(name string, rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// Addresses answers a question for addresses with those of the asked family.
func Addresses(q *dns.Msg, owner string, ttl uint32, addrs []netip.Addr) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	for _, a := range addrs {
		if rr := AddressRecord(owner, ttl, a); rr.Header().Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

// AddressRecord is an A or AAAA record.
func AddressRecord(owner string, ttl uint32, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(owner, dns.TypeA, ttl), A: net.IP(a.AsSlice())}
	}
	return &dns.AAAA{Hdr: header(owner, dns.TypeAAAA, ttl), AAAA: net.IP(a.AsSlice())}
}

// NXDomain says that a name does not exist.
func NXDomain(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(q, dns.RcodeNameError)
	m.Ns = append(m.Ns, &dns.SOA{Hdr: header(".", dns.TypeSOA, 30), Ns: "ns.invalid.", Mbox: "admin.invalid.",
		Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 30})
	return m
}
