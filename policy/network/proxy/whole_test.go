package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// whole is a node's resolver and proxy together, in the namespace of a sandbox whose addresses of sites are local, so
// that connections to them reach the proxy.
type whole struct {
	inet    *networktest.Internet
	sandbox *networktest.Namespace
	book    *dns.Book

	mu      sync.Mutex
	program *network.Program
}

func (w *whole) Open(context.Context, dns.Grant) error { return nil }

func (w *whole) set(t *testing.T, texts ...string) {
	t.Helper()
	p, err := network.ParseTexts(network.Builtin(), texts...)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := network.Compile(network.Layer{Source: network.FromSpec, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.program = prog
}

func (w *whole) now() *network.Program {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.program
}

func startWhole(t *testing.T) *whole {
	t.Helper()
	w := &whole{inet: networktest.New(t), sandbox: networktest.NewNamespace(t), book: dns.NewBook(nil)}
	router := w.inet.Host()
	lo, err := w.sandbox.Netlink().LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := netlink.ParseIPNet("203.0.113.0/24")
	if err != nil {
		t.Fatal(err)
	}
	const typeLocal, tableLocal = 2, 255
	if err := w.sandbox.Netlink().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: prefix, Type: typeLocal, Table: tableLocal, Scope: netlink.SCOPE_HOST}); err != nil {
		t.Fatal(err)
	}
	resolver, err := dns.New(dns.Config{
		Identify: func(netip.Addr) (dns.Client, bool) {
			return dns.Client{Key: "s", Program: w.now(), Generation: 1}, true
		},
		Opener:    w.book.Opener(w),
		Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return router.Dial(ctx, network, to.String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	check, err := proxy.New(proxy.Config{
		Origin:   proxy.Transparent(func(netip.Addr) (string, bool) { return "s", true }),
		Program:  func(string) (*network.Program, bool) { return w.now(), true },
		Answered: w.book.Answered,
		Dial: func(ctx context.Context, f proxy.Flow) (net.Conn, error) {
			return router.Dial(ctx, "tcp", f.Destination.String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	pc, err := w.sandbox.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	var listeners []net.Listener
	for _, at := range []string{":80", ":443"} {
		ln, err := w.sandbox.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, ln)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := resolver.Serve(ctx, []net.PacketConn{pc}, nil); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := check.Serve(ctx, listeners...); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return w
}

// lookup resolves in the sandbox.
func (w *whole) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.sandbox.Dial(ctx, "udp", "127.0.0.1:53")
	}}
	return r.LookupNetIP(ctx, "ip4", name)
}

// A client that resolves and connects as programs do reaches what is allowed, while addresses rotate, and learns at
// once of what is not.
func TestResolveAndConnect(t *testing.T) {
	w := startWhole(t)
	w.set(t, "one.example", "*.cdn.example")
	one := w.inet.Site("one.example", networktest.V4(6))
	w.inet.Site("img.cdn.example", networktest.Addrs(one.V4...))
	two := w.inet.Site("two.example", networktest.Addrs(one.V4...))
	w.inet.DNS.Rotate("img.cdn.example", 0, 1, one.V4...)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			list, err := w.lookup(ctx, host)
			if err != nil {
				return nil, err
			}
			return w.sandbox.Dial(ctx, "tcp", net.JoinHostPort(list[0].String(), port))
		},
		DisableKeepAlives: true,
	}
	tr.TLSClientConfig = w.inet.Client(w.sandbox, nil).Transport.(*http.Transport).TLSClientConfig
	c := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	for _, url := range []string{"https://one.example/", "http://one.example/", "https://img.cdn.example/", "http://img.cdn.example/x"} {
		r, err := c.Get(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != 200 || !strings.HasPrefix(string(b), "site="+r.Request.URL.Host) {
			t.Errorf("%s: %d %q %v", url, r.StatusCode, b, err)
		}
	}
	_, err := w.lookup(t.Context(), "two.example")
	if e, ok := err.(*net.DNSError); !ok || !e.IsNotFound {
		t.Errorf("two.example: %v", err)
	}
	// Its address is known, and was answered for another name.
	direct := w.inet.Client(w.sandbox, func(string) string { return one.V4[0].String() + ":443" })
	if r, err := direct.Get("https://two.example/"); err == nil {
		t.Errorf("two.example answered %d", r.StatusCode)
		r.Body.Close()
	}
	if r := two.Requests(); len(r) != 0 {
		t.Errorf("two.example was reached: %+v", r)
	}
}

// Programs that are not written in Go: another TLS, another HTTP.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl on this machine")
	}
	w := startWhole(t)
	w.set(t, "one.example")
	one := w.inet.Site("one.example", networktest.V4(1))
	if _, err := w.lookup(t.Context(), "one.example"); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, w.inet.CA.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		args = append([]string{"-sS", "--noproxy", "*", "--cacert", ca, "--max-time", "50"}, args...)
		for _, name := range []string{"one.example", "two.example"} {
			for _, port := range []int{80, 443} {
				args = append(args, "--resolve", fmt.Sprintf("%s:%d:%s", name, port, one.V4[0]))
			}
		}
		cmd := exec.CommandContext(ctx, curl, args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := w.sandbox.Start(cmd); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		return out.String(), err
	}
	for _, args := range [][]string{
		{"https://one.example/"}, {"http://one.example/"}, {"--http1.0", "http://one.example/"}, {"--tls-max", "1.2", "https://one.example/"},
		{"--data-binary", "@" + body, "http://one.example/", "http://one.example/"},
		{"-T", body, "-H", "Transfer-Encoding: chunked", "http://one.example/"}, {"-T", body, "https://one.example/"},
	} {
		if out, err := run(args...); err != nil || !strings.Contains(out, "site=one.example") {
			t.Errorf("curl %v: %q %v", args, out, err)
		}
	}
	if out, err := run("https://two.example/"); err == nil || !strings.Contains(out, "denied") {
		t.Errorf("two.example by TLS: %q %v", out, err)
	}
	if out, _ := run("http://two.example/"); !strings.Contains(out, "The sandbox's network policy refuses this request: no rule allows two.example") {
		t.Errorf("two.example: %q", out)
	}
	if out, _ := run("-H", "Host: two.example", "http://one.example/"); !strings.Contains(out, "refuses this request") {
		t.Errorf("another Host: %q", out)
	}
}
