package dns_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
)

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
	if denied != 151 || refused != 249 { // three seconds' worth, and one
		t.Errorf("%d refused, %d denied", refused, denied)
	}
	before := n.takeEvents()
	if len(before) != 50 {
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
	if asked != 33 { // 10 of 17 bytes and 23 of 18
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

// A sandbox holds a bounded number of connections, and they are given back.
func TestTCPConnections(t *testing.T) {
	n := start(t, nil)
	n.set("none")
	var held []net.Conn
	for range 8 {
		c, err := n.sandbox.Dial(t.Context(), "tcp", n.at)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	// The ninth is closed without an answer, or was reset before.
	if m, err := n.exchange("tcp", new(miekg.Msg).SetQuestion("localhost.", miekg.TypeA)); err == nil {
		t.Errorf("a ninth connection is answered: %v", m)
	}
	for _, c := range held {
		c.Close()
	}
	for end := time.Now().Add(30 * time.Second); ; {
		m, err := n.exchange("tcp", new(miekg.Msg).SetQuestion("localhost.", miekg.TypeA))
		if err == nil && len(m.Answer) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after all were closed: %v %v", m, err)
		}
	}
}
