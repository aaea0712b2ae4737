package dns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
)

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

// A resolver that is down: a bounded wait, a clear failure, and the next question works once it is back.
func TestUpstreamDown(t *testing.T) {
	n := start(t, func(c *dns.Config, _ *networktest.Internet) {
		c.Timeout, c.Try = 4*time.Second, 2*time.Second
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
		c.Try = 2 * time.Second
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
	n := start(t, func(c *dns.Config, _ *networktest.Internet) { c.Try = 4 * time.Second })
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
	n := start(t, nil)
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

// Who sends forgeries without end does not keep the true answer away: it comes by TCP.
func TestForgeriesWithoutEnd(t *testing.T) {
	at := netip.AddrPortFrom(networktest.HostileV4, 53)
	evil, good := netip.MustParseAddr("203.0.113.66"), netip.MustParseAddr("203.0.113.1")
	n := start(t, func(c *dns.Config, i *networktest.Internet) {
		c.Upstreams = []netip.AddrPort{at}
		i.AddAddr(networktest.HostileV4)
		pc, err := i.ListenPacket("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		ln, err := i.Listen("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 4096)
			for {
				size, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				q := new(miekg.Msg)
				if q.Unpack(buf[:size]) != nil {
					continue
				}
				for i := range 100 {
					m := networktest.Addresses(q, q.Question[0].Name, 3600, []netip.Addr{evil})
					m.Id += uint16(i + 1)
					b, err := m.Pack()
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = pc.WriteTo(b, from)
					_, _ = pc.WriteTo(b[:3], from) // no message at all
				}
			}
		})
		srv := &miekg.Server{Listener: ln, Handler: miekg.HandlerFunc(func(w miekg.ResponseWriter, q *miekg.Msg) {
			_ = w.WriteMsg(networktest.Addresses(q, q.Question[0].Name, 60, []netip.Addr{good}))
		})}
		wg.Go(func() { _ = srv.ActivateAndServe() })
		t.Cleanup(func() {
			pc.Close()
			_ = srv.Shutdown()
			wg.Wait()
		})
	})
	n.set("example.org")
	if m := n.ask("example.org", miekg.TypeA); !slices.Equal(answers(m), []netip.Addr{good}) {
		t.Errorf("%v", m)
	}
}
