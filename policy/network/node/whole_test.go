package node_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network/networktest"
)

// TestWhole: what a sandbox reaches, by the kernel, by the resolver and by the proxy together.
func TestWhole(t *testing.T) { each(t, whole) }

func whole(t *testing.T, w *world) {
	one := w.inet.Site("one.example", networktest.V4(2), networktest.V6(1))
	two := w.inet.Site("two.example", networktest.Addrs(one.Addrs()...))
	meta := w.inet.Metadata()
	echo := w.echo(one.V4[0])
	w.set("one.example", "one.example:8080/tcp")

	// Nothing is open before its name is resolved.
	if err := w.refused("tcp", echo); err == nil {
		t.Error("an address was open before its name was resolved")
	}
	for _, family := range []string{"ip4", "ip6"} {
		for _, url := range []string{"http://one.example/", "https://one.example/"} {
			if got, err := w.get(w.client(family), url); err != nil || !strings.HasPrefix(got, "site=one.example") {
				t.Errorf("%s over %s: %q %v", url, family, got, err)
			}
		}
	}
	if _, err := w.get(w.client("ip4"), "https://two.example/"); err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("two.example: %v", err)
	}
	// The same address under another name.
	direct := w.inet.Client(w.sandbox, func(string) string { return netip.AddrPortFrom(one.V4[0], 443).String() })
	if _, err := w.get(direct, "https://two.example/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("two.example at one.example's address: %v", err)
	}
	if r := two.Requests(); len(r) != 0 {
		t.Errorf("two.example was reached: %+v", r)
	}
	for _, closed := range []string{
		fmt.Sprintf("%s:22", one.V4[0]), fmt.Sprintf("%s:80", meta.V4[0]), fmt.Sprintf("[%s]:80", meta.V6[0]),
		netip.AddrPortFrom(networktest.ResolverV4, 53).String(), netip.AddrPortFrom(networktest.ResolverV6, 53).String(),
	} {
		if err := w.refused("tcp", netip.MustParseAddrPort(closed)); err == nil {
			t.Errorf("%s is open", closed)
		}
	}

	// Established connections end when a policy no longer allows them, checked ones too.
	plain, web := w.dial(echo), w.dial(netip.AddrPortFrom(one.V4[0], 80))
	const request = "GET / HTTP/1.1\r\nHost: one.example\r\n\r\n"
	if err := errors.Join(say(plain, "ping", 4), say(web, request, 100)); err != nil {
		t.Fatal(err)
	}
	w.set("two.example")
	if err := say(web, request, 100); err == nil {
		t.Error("a checked connection goes on under a policy that forbids it")
	}
	_ = plain.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(plain, "ping"); err == nil {
		if _, err := io.ReadFull(plain, make([]byte, 4)); err == nil {
			t.Error("a connection goes on under a policy that forbids it")
		}
	}
	if got, err := w.get(w.client("ip4"), "https://two.example/"); err != nil || !strings.HasPrefix(got, "site=two.example") {
		t.Errorf("two.example under the new policy: %q %v", got, err)
	}

	// The internet without one name.
	w.set("open", "!two.example")
	if got, err := w.get(w.client("ip6"), "https://one.example/"); err != nil || !strings.HasPrefix(got, "site=one.example") {
		t.Errorf("open: %q %v", got, err)
	}
	if _, err := w.get(direct, "https://two.example/"); err == nil {
		t.Error("two.example is open by its address")
	}
	if err := w.refused("tcp", echo); err != nil {
		t.Errorf("open: %v", err)
	}
	for _, closed := range []string{fmt.Sprintf("%s:80", meta.V4[0]), netip.AddrPortFrom(networktest.ResolverV4, 53).String()} {
		if err := w.refused("tcp", netip.MustParseAddrPort(closed)); err == nil {
			t.Errorf("open: %s is open", closed)
		}
	}
}
