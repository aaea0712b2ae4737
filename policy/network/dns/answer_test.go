package dns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
)

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
