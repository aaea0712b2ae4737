package node_test

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestNewAddress: an address that the node got after it was started is its own all the same, for checked connections too,
// which the node makes itself. Whoever answers for an allowed name could lead there.
func TestNewAddress(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.inet.Site("one.example")
		lo, err := w.host.Netlink().LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"203.0.113.240/32", "2001:db8:1::240/128"} {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				t.Fatal(err)
			}
			if a.IP.To4() == nil {
				a.Flags = 0x02 // IFA_F_NODAD: usable at once
			}
			if err := w.host.Netlink().AddrAdd(lo, a); err != nil {
				t.Fatal(err)
			}
			at, _ := netip.AddrFromSlice(a.IP)
			at = at.Unmap()
			said := make(chan string, 10)
			ln, err := w.host.Listen("tcp", netip.AddrPortFrom(at, 80).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					b := make([]byte, 1)
					if n, _ := io.ReadFull(c, b); n > 0 {
						said <- string(b)
					}
					c.Close()
				}
			}()
			name := fmt.Sprintf("inside%d.example", at.BitLen())
			w.inet.DNS.Host(name, 60, at)
			for _, rules := range [][]string{{name, "one.example"}, {"open", "!two.example"}} {
				w.set(rules...)
				family := "ip6"
				if at.Is4() {
					family = "ip4"
				}
				if got, err := w.get(w.client(family), "http://"+name+"/"); err == nil {
					t.Errorf("%s, %q: %q", at, rules, got)
				}
				if err := w.refused("tcp", netip.AddrPortFrom(at, 8080)); err == nil {
					t.Errorf("%s, %q: open", at, rules)
				}
				if got, err := w.get(w.client(family), "http://one.example/"); err != nil || !strings.HasPrefix(got, "site=one.example") {
					t.Errorf("a site, under %q: %q %v", rules, got, err)
				}
			}
			select {
			case b := <-said:
				t.Errorf("the node was told %q", b)
			default:
			}
		}
	})
}
