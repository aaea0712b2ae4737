package networktest_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/opendsec/dsec/policy/network/networktest"
)

func get(t *testing.T, inet *networktest.Internet, from *networktest.Namespace, url, addr string) string {
	t.Helper()
	r, err := inet.Client(from, func(string) string { return addr }).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func ask(t *testing.T, from *networktest.Namespace, server, name string, qtype uint16) []netip.Addr {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "udp", server)
	if err != nil {
		t.Fatal(err)
	}
	c := &dns.Conn{Conn: conn}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err := c.WriteMsg(new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)); err != nil {
		t.Fatal(err)
	}
	m, err := c.ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			a, _ := netip.AddrFromSlice(rr.A.To4())
			out = append(out, a)
		case *dns.AAAA:
			a, _ := netip.AddrFromSlice(rr.AAAA)
			out = append(out, a)
		}
	}
	return out
}

func TestSitesAndNames(t *testing.T) {
	inet := networktest.New(t)
	one := inet.Site("one.example")
	six := inet.Site("six.example", networktest.V6(1))
	two := inet.Site("two.example", networktest.Addrs(one.V4...))
	meta := inet.Metadata()
	host := inet.Host()

	if got := get(t, inet, host, "https://one.example/", one.V4[0].String()+":443"); got != "site=one.example host=one.example\n" {
		t.Errorf("one.example by TLS: %q", got)
	}
	if got := get(t, inet, host, "http://two.example/", two.V4[0].String()+":80"); got != "site=two.example host=two.example\n" {
		t.Errorf("two.example on one.example's address: %q", got)
	}
	if got := get(t, inet, host, "https://six.example/", "["+six.V6[0].String()+"]:443"); !strings.HasPrefix(got, "site=six.example") {
		t.Errorf("an IPv6-only site: %q", got)
	}
	if len(six.V4) != 0 {
		t.Errorf("an IPv6-only site has %v", six.V4)
	}
	if got := get(t, inet, host, "http://metadata/", meta.V4[0].String()+":80"); got != "secret credentials\n" {
		t.Errorf("metadata: %q", got)
	}
	if got := ask(t, host, "198.51.100.53:53", "one.example", dns.TypeA); len(got) != 1 || got[0] != one.V4[0] {
		t.Errorf("one.example has %v", got)
	}
	inet.DNS.Rotate("cdn.example", 1, 1, one.V4[0], netip.MustParseAddr("203.0.113.200"))
	first, second := ask(t, host, "[2001:db8:53::53]:53", "cdn.example", dns.TypeA), ask(t, host, "198.51.100.53:53", "cdn.example", dns.TypeA)
	if len(first) != 1 || len(second) != 1 || first[0] == second[0] {
		t.Errorf("rotating answers: %v, then %v", first, second)
	}
	if q := inet.DNS.Queries(); len(q) != 3 || q[0].Name != "one.example." {
		t.Errorf("queries: %+v", q)
	}
	if r := one.Requests(); len(r) != 1 || r[0].SNI != "one.example" {
		t.Errorf("requests: %+v", r)
	}
}

// A process started in a host sees the host's links, and nothing of the machine's.
func TestProcessInside(t *testing.T) {
	inet := networktest.New(t)
	host := inet.Host()
	cmd := exec.Command("cat", "/proc/self/net/dev")
	var out strings.Builder
	cmd.Stdout = &out
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), ":"); n != 2 || !strings.Contains(out.String(), "eth0:") {
		t.Errorf("links inside:\n%s", out.String())
	}
}

// What a test made is gone after it: no link remains in the machine's own namespace, no descriptor in the process.
func TestNothingStays(t *testing.T) {
	count := func() (links, handles int) {
		d, err := os.ReadDir("/sys/class/net")
		if err != nil {
			t.Fatal(err)
		}
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "net:[") {
				handles++
			}
		}
		return len(d), handles
	}
	links, handles := count()
	t.Run("inside", func(t *testing.T) {
		inet := networktest.New(t)
		inet.Site("one.example")
		inet.Host()
	})
	if l, h := count(); l != links || h != handles {
		t.Errorf("afterwards %d links and %d namespace descriptors, before %d and %d", l, h, links, handles)
	}
}
