package node_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// world is a node's network between a sandbox and a test internet.
type world struct {
	*node.Network
	t       *testing.T
	inet    *networktest.Internet
	host    *networktest.Namespace
	cfg     node.Config
	sandbox *networktest.Namespace
	gen     uint64

	mu     sync.Mutex // guards events
	events []node.Event
}

const (
	slot = 3
	key  = "sandbox"
)

// start makes the network of a node and attaches one sandbox.
func start(t *testing.T, by string) *world {
	t.Helper()
	w := &world{t: t, inet: networktest.New(t), sandbox: networktest.NewNamespace(t)}
	if by == datapath.Nftables {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("nft is not installed")
		}
	}
	w.host = w.inet.Host()
	if err := w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	up := link.DefaultUplink()
	up.Host = w.file(w.host)
	w.cfg = node.Config{
		Dir: filepath.Join(t.TempDir(), "network"), Uplink: up, Enforcer: by, Addresses: []netip.Prefix{},
		Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return w.host.Dial(ctx, network, address)
		},
		Log: slog.New(slog.DiscardHandler),
	}
	w.open()
	t.Cleanup(func() {
		if w.Network == nil {
			return
		}
		if err := w.Destroy(); err != nil {
			t.Errorf("destroy: %v", err)
		}
		w.nothingLeft()
	})
	w.attach(slot, w.sandbox)
	return w
}

// each runs a test on every kind of datapath that is here.
func each(t *testing.T, f func(*testing.T, *world)) {
	for _, by := range []string{datapath.EBPF, datapath.Nftables} {
		t.Run(by, func(t *testing.T) { f(t, start(t, by)) })
	}
}

func (w *world) file(n *networktest.Namespace) *os.File {
	w.t.Helper()
	f, err := n.File()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { f.Close() })
	return f
}

func (w *world) open() {
	w.t.Helper()
	n, err := node.Open(w.cfg, func(e node.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	})
	if errors.Is(err, sandbox.ErrUnsupported) {
		w.t.Skip(err)
	} else if err != nil {
		w.t.Fatal(err)
	}
	w.Network = n
}

func (w *world) attach(slot int, n *networktest.Namespace) {
	w.t.Helper()
	if err := w.Attach(slot, w.file(n), nil); err != nil {
		w.t.Fatal(err)
	}
}

// nothingLeft looks for what a network leaves: its directory's content, links of the host, rules.
func (w *world) nothingLeft() {
	w.t.Helper()
	links, err := w.host.Netlink().LinkList()
	if err != nil {
		w.t.Error(err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" && name != "eth0" {
			w.t.Errorf("left on the host: interface %s", name)
		}
	}
	if _, err := exec.LookPath("nft"); err == nil {
		var out []byte
		if err := w.host.Do(func() (err error) { out, err = exec.Command("nft", "list", "ruleset").Output(); return err }); err != nil || len(out) > 0 {
			w.t.Errorf("left on the host: rules %s, %v", out, err)
		}
	}
}

// compile makes a program of rules as they are written.
func (w *world) compile(rules ...string) *network.Program {
	w.t.Helper()
	p, err := network.ParseTexts(network.Builtin(), rules...)
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.Compiler()
	prog, err := c.Compile(network.Layer{Source: network.FromSpec, Policy: p})
	if err != nil {
		w.t.Fatal(err)
	}
	return prog
}

func (w *world) set(rules ...string) {
	w.t.Helper()
	w.gen++
	if err := w.Set(slot, key, w.gen, w.compile(rules...)); err != nil {
		w.t.Fatal(err)
	}
}

// event waits for one that is as wanted.
func (w *world) event(what string, is func(node.Event) bool) node.Event {
	w.t.Helper()
	var found node.Event
	eventually(w.t, "event "+what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.events {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// eventually waits until ok, for at most half a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) { // between looks
		if time.Now().After(end) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

func (w *world) lookup(ctx context.Context, family, name string) ([]netip.Addr, error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.sandbox.Dial(ctx, network, netip.AddrPortFrom(w.Resolvers()[0], 53).String())
	}}
	return r.LookupNetIP(ctx, family, name)
}

// client resolves and connects in the sandbox, over one family.
func (w *world) client(family string) *http.Client {
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

func (w *world) get(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// refused says how a connection does not come about; nil if it does.
func (w *world) refused(network string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c, err := w.sandbox.Dial(ctx, network, to.String())
	if err == nil {
		c.Close()
	}
	return err
}

// echo serves what it is sent, on port 8080 of an address of the internet.
func (w *world) echo(a netip.Addr) netip.AddrPort {
	w.t.Helper()
	at := netip.AddrPortFrom(a, 8080)
	ln, err := w.inet.Listen("tcp", at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
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
	w.t.Cleanup(func() {
		cancel()
		ln.Close()
		wg.Wait()
	})
	return at
}

// dial connects from the sandbox.
func (w *world) dial(to netip.AddrPort) net.Conn {
	w.t.Helper()
	c, err := w.sandbox.Dial(w.t.Context(), "tcp", to.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// say sends and waits for as many bytes as are wanted.
func say(c net.Conn, s string, want int) error {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, s); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, want))
	return err
}

// aMoment is a deadline for what must not come.
func aMoment() time.Time { return time.Now().Add(time.Second) }
