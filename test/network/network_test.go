package network

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// cases are what sandboxes reach and what they do not.
var cases = []struct {
	name string
	test func(*testing.T, *world, *sites)
}{
	{"Allowed", testAllowed}, {"Closed", testClosed}, {"Shared", testShared}, {"Six", testSix}, {"Open", testOpen},
	{"Without", testWithout}, {"Rotating", testRotating}, {"Unresolved", testUnresolved}, {"Forged", testForged},
	{"Nested", testNested}, {"Ports", testPorts}, {"Live", testLive}, {"Paused", testPaused}, {"GivenUp", testGivenUp},
	{"Events", testEvents}, {"Named", testNamed}, {"Names", testNames}, {"Ping", testPing}, {"Clients", testClients}, {"Npm", testNpm}, {"Modules", testModules}, {"BadInput", testBadInput}, {"Killed", testKilled}, {"Checked", testChecked}, {"Second", testSecond},
}

// TestNetwork: all of it, on one node.
func TestNetwork(t *testing.T) {
	w := start(t, datapath.EBPF)
	s := w.sites()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.test(t, w, s) })
	}
}

// onFallback are those that make test runs where nftables enforces: what differs most. make test-all runs all.
var onFallback = []string{"Allowed", "Closed", "Shared", "Open", "Forged", "Live", "Events", "Modules", "Killed", "Checked"}

// TestFallback: the same where nftables enforces.
func TestFallback(t *testing.T) {
	w := start(t, datapath.Nftables)
	s := w.sites()
	for _, c := range cases {
		if slow || slices.Contains(onFallback, c.name) {
			t.Run(c.name, func(t *testing.T) { c.test(t, w, s) })
		}
	}
}

// sites are what the internet holds.
type sites struct {
	pypi, files, npm, shared, tenant, live, six, metadata *networktest.Site
	echo                                                  *echo
}

func (w *world) sites() *sites {
	s := &sites{
		pypi: w.inet.Site("pypi.org"), files: w.inet.Site("files.pythonhosted.org"), npm: w.inet.Site("registry.npmjs.org"),
		shared: w.inet.Site("shared.example"), metadata: w.inet.Metadata(), six: w.inet.Site("six.example", networktest.V6(1)),
		live: w.inet.Site("live.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(drip))),
	}
	s.tenant = w.inet.Site("tenant.example", networktest.Addrs(s.shared.Addrs()...))
	s.echo = w.echo(s.pypi.V4[0])
	return s
}

// drip answers without an end.
func drip(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/" {
		_, _ = io.WriteString(rw, "live\n")
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(rw, "x"); err != nil {
			return
		}
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// echo answers bytes by TCP on port 7000 and datagrams on port 7001, and counts.
type echo struct {
	at        netip.Addr
	bytes     atomic.Int64
	datagrams chan string
}

func (w *world) echo(at netip.Addr) *echo {
	w.t.Helper()
	e := &echo{at: at, datagrams: make(chan string, 100)}
	ln, err := w.inet.Listen("tcp", netip.AddrPortFrom(at, 7000).String())
	if err != nil {
		w.t.Fatal(err)
	}
	pc, err := w.inet.ListenPacket("udp", netip.AddrPortFrom(at, 7001).String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close(); pc.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go e.serve(c)
		}
	}()
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			select {
			case e.datagrams <- string(b[:n]):
			default:
			}
			_, _ = pc.WriteTo(b[:n], from)
		}
	}()
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	b := make([]byte, 100)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		e.bytes.Add(int64(n))
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

// goesOn waits for bytes of a conversation.
func (e *echo) goesOn(t *testing.T) {
	t.Helper()
	before := e.bytes.Load()
	eventually(t, "bytes of an allowed connection", func() bool { return e.bytes.Load() >= before+3 })
}

func testAllowed(t *testing.T, w *world, s *sites) {
	b := w.box(t, "pypi", "!npm")
	defer b.stop()
	b.reach("https://pypi.org/simple", "200 site=pypi.org host=pypi.org")
	b.reach("https://files.pythonhosted.org/", "200 site=files.pythonhosted.org host=files.pythonhosted.org")
	b.reach("https://PyPI.org/", "200 site=pypi.org host=PyPI.org")
	b.sh("getent hosts pypi.org.")
	b.reach("https://registry.npmjs.org/", "name") // denied
	b.reach("https://unnamed.example/", "name")    // named by no rule
	b.reach("http://pypi.org/", "denied")          // the service is on 443 alone
	b.reach("tcp "+addr(s.pypi.V4[0], "7000"), "denied")
	if len(s.npm.Requests()) != 0 {
		t.Error("the denied site was reached")
	}
	for _, q := range w.inet.DNS.Queries() {
		if name := strings.ToLower(q.Name); name == "registry.npmjs.org." || name == "unnamed.example." {
			t.Errorf("the denied name %s was asked upstream", name)
		}
	}
	// A name of its own, a name that does not exist, and localhost.
	b.reach("https://nothing.pypi.org/", "name")
	if got := b.sh("getent hosts localhost; getent hosts $(hostname) >/dev/null && echo own"); !strings.Contains(got, "localhost") || !strings.Contains(got, "own") {
		t.Errorf("localhost and the own name: %q", got)
	}
	b.explain("pypi.org", 443, true)
	b.explain("registry.npmjs.org", 443, false)
}

// testClosed: addresses open by names alone, and only the node's resolver answers.
func testClosed(t *testing.T, w *world, s *sites) {
	w.inet.Hostile(s.pypi.V4[0], s.shared.V4[0])
	b := w.box(t, "pypi")
	defer b.stop()
	for _, a := range s.pypi.Addrs() {
		b.reach("tcp "+addr(a, "443"), "denied")
	}
	for _, a := range []netip.Addr{networktest.HostileV4, networktest.ResolverV4, networktest.ResolverV6} {
		b.reach("udp "+addr(a, "53"), "denied")
		b.reach("tcp "+addr(a, "53"), "denied")
		b.reach("tcp "+addr(a, "853"), "denied")
	}
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
}

// testShared: tenants of one address stay closed when one of them is allowed.
func testShared(t *testing.T, w *world, s *sites) {
	b := w.box(t, "shared.example")
	defer b.stop()
	b.reach("https://shared.example/", "200 site=shared.example host=shared.example")
	b.reach("http://shared.example/", "200 site=shared.example host=shared.example")
	for _, a := range s.shared.Addrs() {
		b.reach("sni "+a.String()+" shared.example", "site=shared.example host=shared.example")
		b.reach("sni "+a.String()+" tenant.example", "tls TLSV1_ALERT_ACCESS_DENIED")
		b.reach("host "+a.String()+" shared.example", "HTTP/1.1 200 OK")
		b.reach("host "+a.String()+" tenant.example", "HTTP/1.1 403 Forbidden")
	}
	if len(s.tenant.Requests()) != 0 {
		t.Error("the other tenant was reached")
	}
	b.reach("udp "+addr(s.shared.V4[0], "443"), "denied", "refused")
}

// testSix: a site that has no IPv4.
func testSix(t *testing.T, w *world, s *sites) {
	b := w.box(t, "six.example", "[2001:db8:1::/48]:7000/tcp")
	defer b.stop()
	b.reach("https://six.example/", "200 site=six.example host=six.example")
	ln, err := w.inet.Listen("tcp", netip.AddrPortFrom(s.six.V6[0], 7000).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b.reach("tcp "+addr(s.six.V6[0], "7000"), "open") // by the kernel, without the proxy
	b.reach("tcp "+addr(s.six.V6[0], "22"), "denied")
}

// testOpen: the internet is not the node, other sandboxes, private ranges or metadata services.
func testOpen(t *testing.T, w *world, s *sites) {
	b, other := w.box(t, "open"), w.box(t, "open")
	defer b.stop()
	defer other.stop()
	b.reach("https://shared.example/", "200 site=shared.example host=shared.example")
	b.reach("tcp "+addr(s.pypi.V4[0], "7000"), "open")
	for _, a := range s.metadata.Addrs() {
		b.reach("http://"+netip.AddrPortFrom(a, 80).String()+"/", "denied")
		b.explain(a.String(), 80, false)
	}
	// Something to find on the node, on every address, and in the other sandbox.
	var found atomic.Int64
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			found.Add(1)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	_, api, _ := strings.Cut(strings.TrimPrefix(w.URL, "http://"), ":")
	for _, a := range []netip.Addr{w.link.V4, w.link.V6, netip.MustParseAddr("100.127.127.253"), netip.MustParseAddr("fdd5:ec00:0:1::1")} {
		b.reach("tcp "+addr(a, port), "denied")
		b.reach("tcp "+addr(a, api), "denied")
	}
	if found.Load() != 0 {
		t.Error("a sandbox reached the node")
	}
	for _, p := range []string{port, api} {
		b.reach("tcp "+addr(netip.MustParseAddr("127.0.0.1"), p), "refused") // its own loopback
	}
	other.sh("cd /tmp && { python3 -m http.server --bind :: 8000 >/tmp/log 2>&1 & } && until reach http://127.0.0.1:8000/ | grep -q 200; do :; done")
	for _, v := range []string{"4", "6"} {
		a := netip.MustParseAddr(other.sh("reach self " + v))
		other.reach("tcp "+addr(a, "8000"), "open") // by its own address
		b.reach("tcp "+addr(a, "8000"), "denied")
	}
	for _, a := range []string{"10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1", "169.254.1.1"} {
		b.reach("tcp "+a+" 80", "denied")
	}
	b.reach("tcp fe80::1 80", "EINVAL", "denied", "unreachable")
	for _, gateway := range strings.Fields(b.sh("sed -n 's/^nameserver //p' /etc/resolv.conf")) {
		b.reach("tcp "+gateway+" 53", "open")
		b.reach("tcp "+gateway+" 15001", "denied", "refused") // where checked connections go
	}
}

// testRotating: a content network whose answers differ each time.
func testRotating(t *testing.T, w *world, _ *sites) {
	cdn := w.inet.Site("cdn.example", networktest.V4(8))
	w.inet.DNS.Rotate("cdn.example", 0, 2, cdn.V4...)
	b := w.box(t, "cdn.example")
	defer b.stop()
	for range 6 {
		b.reach("https://cdn.example/", "200 site=cdn.example host=cdn.example")
	}
	b.sh("getent ahostsv4 cdn.example >/dev/null") // leads to two of them at once
	b.reach("https://cdn.example/", "200 site=cdn.example host=cdn.example")
}

// testUnresolved: a resolver that does not answer, answers without addresses, with five hundred, and that lead inwards.
func testUnresolved(t *testing.T, w *world, s *sites) {
	b := w.box(t, "*.odd.example", "shared.example")
	defer b.stop()
	w.inet.DNS.Host("none.odd.example", 60)
	var many []netip.Addr
	for i := range 500 {
		many = append(many, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	w.inet.DNS.Host("many.odd.example", 60, many...)
	w.inet.DNS.Host("inwards.odd.example", 60, networktest.MetadataV4, w.link.V4, netip.MustParseAddr("100.127.127.253"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1"))
	b.reach("http://none.odd.example/", "name", "nodata")
	b.reach("http://inwards.odd.example/", "name", "nodata")
	if n := b.sh("getent ahostsv4 many.odd.example | grep -c STREAM"); n != "16" {
		t.Errorf("%s of 500 addresses were answered, want 16", n)
	}
	w.inet.DNS.Down(true)
	defer w.inet.DNS.Down(false)
	b.reach("http://silent.odd.example/", "again")
	b.event("of a name that could not be resolved", func(e *dsecv1.Event) bool {
		return e.GetType() == "network_failed" && e.GetAttributes()["name"] == "silent.odd.example"
	})
	b.reach("https://unnamed.example/", "name") // what is denied needs no resolver
	w.inet.DNS.Down(false)
	b.reach("https://shared.example/", "200 site=shared.example host=shared.example")
}

func testWithout(t *testing.T, w *world, s *sites) {
	b := w.box(t, "!npm")
	defer b.stop()
	if got := b.sh("ls /sys/class/net"); got != "lo" {
		t.Errorf("interfaces %q", got)
	}
	b.reach("https://pypi.org/", "name", "again")
	for _, a := range s.pypi.Addrs() {
		b.reach("tcp "+addr(a, "443"), "unreachable")
	}
	b.explain("pypi.org", 443, false)
	if b.info().GetNetwork() != nil {
		t.Error("it has a network")
	}
}
