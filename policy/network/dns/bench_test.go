package dns_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// BenchmarkQuestion compares a question through the resolver (new to it, and cached) with the same one asked upstream
// directly from the sandbox's namespace.
func BenchmarkQuestion(b *testing.B) {
	n := start(b, func(c *dns.Config, _ *networktest.Internet) {
		c.Rate, c.WildBurst = 1e9, 1<<30
		// Sockets are made ahead: entering a namespace for each would be measured, which a node does not do.
		dial, ready := c.Dial, make(chan net.Conn, 256)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				conn, err := dial(context.Background(), "udp", c.Upstreams[0])
				if err != nil {
					return
				}
				select {
				case ready <- conn:
				case <-stop:
					conn.Close()
					return
				}
			}
		})
		b.Cleanup(func() {
			close(stop)
			wg.Wait()
			close(ready)
			for conn := range ready {
				conn.Close()
			}
		})
		c.Dial = func(context.Context, string, netip.AddrPort) (net.Conn, error) { return <-ready, nil }
	})
	n.set("*.example.org")
	addr := netip.MustParseAddr("203.0.113.1")
	n.inet.DNS.Default(func(q *miekg.Msg, _ string) *miekg.Msg {
		return networktest.Addresses(q, q.Question[0].Name, 60, []netip.Addr{addr})
	})
	ask := func(b *testing.B, to, name string) {
		conn, err := n.sandbox.Dial(b.Context(), "udp", to)
		if err != nil {
			b.Fatal(err)
		}
		c := &miekg.Conn{Conn: conn}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if err := c.WriteMsg(new(miekg.Msg).SetQuestion(name, miekg.TypeA)); err != nil {
			b.Fatal(err)
		}
		if m, err := c.ReadMsg(); err != nil || len(m.Answer) != 1 {
			b.Fatal(m, err)
		}
	}
	i := 0
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			i++
			ask(b, "198.51.100.53:53", fmt.Sprintf("host%d.example.org.", i))
		}
	})
	b.Run("uncached", func(b *testing.B) {
		for b.Loop() {
			i++
			ask(b, n.at, fmt.Sprintf("host%d.example.org.", i))
		}
	})
	b.Run("cached", func(b *testing.B) {
		for b.Loop() {
			ask(b, n.at, "host1.example.org.")
		}
	})
}
