package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/proxy"
	"github.com/opendsec/dsec/sandbox"
)

// whole is a node's network: router, datapath, resolver and proxy, between a sandbox and a test internet.
type whole struct {
	t       *testing.T
	inet    *networktest.Internet
	sandbox *networktest.Namespace
	router  *link.Router
	dp      datapath.Datapath
	book    *dns.Book
	proxy   *proxy.Server

	mu      sync.Mutex
	program *network.Program
	gen     uint64
}

const slot = 3

// Open tells the datapath what the resolver answered.
func (w *whole) Open(_ context.Context, g dns.Grant) error {
	for _, a := range g.Addresses {
		err := w.dp.Learn(slot, g.Generation, a.Addr, a.Openings, g.Until)
		if errors.Is(err, sandbox.ErrConflict) {
			return dns.ErrStale
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *whole) set(texts ...string) {
	w.t.Helper()
	p, err := network.ParseTexts(network.Builtin(), texts...)
	if err != nil {
		w.t.Fatal(err)
	}
	plan := w.router.Plan()
	c := network.Compiler{Node: append([]netip.Prefix{plan.Pool4, plan.Pool6}, w.router.Uplinks()...)}
	prog, err := c.Compile(network.Layer{Source: network.FromSpec, Policy: p})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.program, w.gen = prog, w.gen+1
	gen := w.gen
	w.mu.Unlock()
	if err := w.dp.Set(slot, gen, prog.Static); err != nil {
		w.t.Fatal(err)
	}
	w.proxy.Recheck("s")
}

func (w *whole) now() (*network.Program, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.program, w.gen
}

func startWhole(t *testing.T) *whole {
	t.Helper()
	w := &whole{t: t, inet: networktest.New(t), sandbox: networktest.NewNamespace(t), book: dns.NewBook(nil)}
	host := w.inet.Host()
	file := func(n *networktest.Namespace) *os.File {
		f, err := n.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	if err := host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	up := link.DefaultUplink()
	up.Host = file(host)
	var err error
	if w.router, err = link.Open(link.Config{Dir: t.TempDir(), Plan: link.DefaultPlan(), Uplink: up}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.router.Destroy(); err != nil {
			t.Error(err)
		}
	})
	const proxyPort = 15001
	if w.dp, err = datapath.OpenEBPF(datapath.Config{Dir: t.TempDir(), Router: w.router, ProxyPort: proxyPort}); errors.Is(err, sandbox.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.dp.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err := w.router.Make(slot, file(w.sandbox)); err != nil {
		t.Fatal(err)
	}
	if err := w.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)}); err != nil {
		t.Fatal(err)
	}
	w.serve(host, proxyPort)
	return w
}

// serve runs the resolver and the proxy at the gateway's addresses. They reach the internet from the host's namespace.
func (w *whole) serve(host *networktest.Namespace, proxyPort uint16) {
	t := w.t
	plan := w.router.Plan()
	resolver, err := dns.New(dns.Config{
		Identify: func(a netip.Addr) (dns.Client, bool) {
			s, ok := plan.SlotOf(a)
			p, gen := w.now()
			return dns.Client{Key: "s", Program: p, Generation: gen}, ok && s == slot
		},
		Opener:    w.book.Opener(w),
		Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return host.Dial(ctx, network, to.String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.proxy, err = proxy.New(proxy.Config{
		Origin: proxy.Transparent(func(a netip.Addr) (string, bool) {
			s, ok := plan.SlotOf(a)
			return "s", ok && s == slot
		}),
		Program: func(string) (*network.Program, bool) {
			p, _ := w.now()
			return p, p != nil
		},
		Answered: w.book.Answered,
		Dial: func(ctx context.Context, f proxy.Flow) (net.Conn, error) {
			return host.Dial(ctx, "tcp", f.Destination.String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var packets []net.PacketConn
	var streams, checked []net.Listener
	for _, gw := range []netip.Addr{plan.Gateway4(), plan.Gateway6()} {
		pc, err := w.router.ListenPacket(netip.AddrPortFrom(gw, 53))
		if err != nil {
			t.Fatal(err)
		}
		packets = append(packets, pc)
		ln, err := w.router.Listen(netip.AddrPortFrom(gw, 53), false)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, ln)
		if ln, err = w.router.Listen(netip.AddrPortFrom(gw, proxyPort), true); err != nil {
			t.Fatal(err)
		}
		checked = append(checked, ln)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := resolver.Serve(ctx, packets, streams); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := w.proxy.Serve(ctx, checked...); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

func (w *whole) lookup(ctx context.Context, family, name string) ([]netip.Addr, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.sandbox.Dial(ctx, network, netip.AddrPortFrom(w.router.Plan().Gateway4(), 53).String())
	}}
	return r.LookupNetIP(ctx, family, name)
}

// client resolves and connects in the sandbox, over one family.
func (w *whole) client(family string) *http.Client {
	c := w.inet.Client(w.sandbox, nil)
	tr := c.Transport.(*http.Transport)
	tr.DisableKeepAlives = true
	tr.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		list, err := w.lookup(ctx, family, host)
		if err != nil {
			return nil, err
		}
		return w.sandbox.Dial(ctx, "tcp", net.JoinHostPort(list[0].Unmap().String(), port))
	}
	return c
}

func (w *whole) get(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// refused says how a connection does not come about; nil if it does.
func (w *whole) refused(network string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c, err := w.sandbox.Dial(ctx, network, to.String())
	if err == nil {
		c.Close()
	}
	return err
}

func TestWholeNode(t *testing.T) {
	w := startWhole(t)
	one := w.inet.Site("one.example", networktest.V4(2), networktest.V6(1))
	two := w.inet.Site("two.example", networktest.Addrs(one.Addrs()...))
	meta := w.inet.Metadata()
	echo, err := w.inet.Listen("tcp", netip.AddrPortFrom(one.V4[0], 8080).String())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	defer echo.Close()
	wg.Go(func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			// A connection that a policy has cut ends for the client alone.
			wg.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				_, _ = io.Copy(c, c)
			})
		}
	})
	w.set("one.example", "one.example:8080/tcp")

	// Nothing is open before its name is resolved.
	if err := w.refused("tcp", netip.AddrPortFrom(one.V4[0], 8080)); err == nil {
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
	plain, err := w.sandbox.Dial(t.Context(), "tcp", netip.AddrPortFrom(one.V4[0], 8080).String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	web, err := w.sandbox.Dial(t.Context(), "tcp", netip.AddrPortFrom(one.V4[0], 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	say := func(c net.Conn, s string, want int) error {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, s); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, want))
		return err
	}
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
	if err := w.refused("tcp", netip.AddrPortFrom(one.V4[0], 8080)); err != nil {
		t.Errorf("open: %v", err)
	}
	for _, closed := range []string{fmt.Sprintf("%s:80", meta.V4[0]), netip.AddrPortFrom(networktest.ResolverV4, 53).String()} {
		if err := w.refused("tcp", netip.MustParseAddrPort(closed)); err == nil {
			t.Errorf("open: %s is open", closed)
		}
	}
}
