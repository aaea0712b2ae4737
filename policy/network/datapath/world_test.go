package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// The internet of these tests: a namespace that the host's namespace forwards to.
const (
	site4   = "203.0.113.10"
	other4  = "203.0.113.20"
	site6   = "2001:db8:1::10"
	other6  = "2001:db8:1::20"
	host4   = "198.51.100.1" // the host's own, toward the internet
	host6   = "2001:db8:2::1"
	wan4    = "198.51.100.2"
	wan6    = "2001:db8:2::2"
	portTCP = 8080
	portUDP = 9000
)

type world struct {
	t        testing.TB
	router   *link.Router
	dp       datapath.Datapath
	cfg      datapath.Config
	linkCfg  link.Config
	host     *linux.NetSpace
	internet *linux.NetSpace
	taps     bool // sandboxes are machines
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// needTool skips the fallback's tests where its program is missing.
func needTool(t testing.TB, kind string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil && kind == "nftables" {
		t.Skip("nft is not installed")
	}
}

func newSpace(t testing.TB) *linux.NetSpace {
	t.Helper()
	s, err := linux.NewNetSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// netlink applies requests in a namespace.
func netlink(s *linux.NetSpace, reqs ...linux.Request) error {
	return s.Do(func() error {
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		return r.Apply(reqs...)
	})
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

const mark = 5 // index of interfaces that tests make

// newNet makes the router, the host and the internet, without a datapath.
func newNet(t testing.TB) *world {
	needRoot(t)
	w := &world{t: t, host: newSpace(t), internet: newSpace(t)}
	hostMAC, wanMAC := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	must(t, netlink(w.host,
		linux.AddVeth(linux.VethEnd{Name: "wan", Index: mark, MAC: hostMAC}, linux.VethEnd{Name: "wan", Index: mark, MAC: wanMAC, Space: w.internet.File()}, 0),
		linux.UpLink(1), linux.QuietLink(mark), linux.UpLink(mark),
		linux.AddAddress(mark, prefix(host4+"/30")), linux.AddAddress(mark, prefix(host6+"/64")),
		linux.TakeAddress(mark, netip.MustParseAddr(host6)),
	))
	must(t, netlink(w.internet, linux.UpLink(1), linux.QuietLink(mark), linux.UpLink(mark),
		linux.AddAddress(mark, prefix(wan4+"/30")), linux.AddAddress(mark, prefix(wan6+"/64")),
		linux.AddAddress(1, prefix(site4+"/32")), linux.AddAddress(1, prefix(other4+"/32")),
		linux.AddAddress(1, prefix(site6+"/128")), linux.AddAddress(1, prefix(other6+"/128")),
		linux.TakeAddress(1, netip.MustParseAddr(site6)), linux.TakeAddress(1, netip.MustParseAddr(other6)),
		linux.TakeAddress(mark, netip.MustParseAddr(wan6)),
	))
	must(t, netlink(w.host,
		linux.AddNeighbour(mark, netip.MustParseAddr(wan4), wanMAC), linux.AddNeighbour(mark, netip.MustParseAddr(wan6), wanMAC),
		linux.AddRoute(linux.RouteTo{To: prefix("0.0.0.0/0"), Index: mark, Via: netip.MustParseAddr(wan4)}),
		linux.AddRoute(linux.RouteTo{To: prefix("::/0"), Index: mark, Via: netip.MustParseAddr(wan6)}),
	))
	must(t, netlink(w.internet, linux.AddNeighbour(mark, netip.MustParseAddr(host4), hostMAC), linux.AddNeighbour(mark, netip.MustParseAddr(host6), hostMAC)))
	must(t, w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }))
	up := link.DefaultUplink()
	up.Host = w.host.File()
	w.linkCfg = link.Config{Dir: t.TempDir(), Plan: link.DefaultPlan(), Uplink: up}
	var err error
	w.router, err = link.Open(w.linkCfg)
	must(t, err)
	t.Cleanup(func() {
		if err := w.router.Destroy(); err != nil {
			t.Errorf("destroy the router: %v", err)
		}
	})
	return w
}

type opener func(datapath.Config) (datapath.Datapath, error)

// newWorld has a datapath too.
func newWorld(t testing.TB, open opener, change ...func(*datapath.Config)) *world {
	w := newNet(t)
	w.cfg = datapath.Config{Dir: t.TempDir(), Router: w.router, ProxyPort: 15001,
		Forbidden: []netip.Prefix{prefix(host4 + "/32"), prefix(host6 + "/128")}}
	for _, f := range change {
		f(&w.cfg)
	}
	var err error
	w.dp, err = open(w.cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := w.dp.Destroy(); err != nil {
			t.Errorf("destroy the datapath: %v", err)
		}
	})
	return w
}

type box struct {
	*linux.NetSpace
	w    *world
	slot int
	gen  uint64

	queue *os.File // of a machine
}

// sandbox makes a namespace with a link under enforcement.
func (w *world) sandbox(slot int) *box {
	w.t.Helper()
	b := &box{NetSpace: newSpace(w.t), w: w, slot: slot}
	if w.taps {
		w.machine(b)
	} else {
		must(w.t, w.router.Make(slot, b.File()))
	}
	must(w.t, w.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)}))
	return b
}

func entry(p string, proto network.Protocol, from, to uint16, v network.Verdict) network.Entry {
	return network.Entry{Prefix: prefix(p), Opening: network.Opening{Protocol: proto, From: from, To: to, Verdict: v}}
}

func allow(p string) network.Entry { return entry(p, network.Any, 0, 65535, network.VerdictAllow) }

// set gives the next generation.
func (b *box) set(entries ...network.Entry) {
	b.w.t.Helper()
	b.gen++
	must(b.w.t, b.w.dp.Set(b.slot, b.gen, entries))
}

func (b *box) addr4() netip.Addr { return b.w.router.Plan().Address4(b.slot) }
func (b *box) addr6() netip.Addr { return b.w.router.Plan().Address6(b.slot) }

const patience = 20 * time.Second

// dial connects from a namespace, for as long as patience lasts: a test that waits for it to end has failed.
func dial(s *linux.NetSpace, network, address string) (net.Conn, error) {
	var c net.Conn
	err := s.Do(func() (err error) {
		d := net.Dialer{Timeout: patience, FallbackDelay: -1}
		c, err = d.Dial(network, address)
		return err
	})
	return c, err
}

func at(addr string, port int) string { return net.JoinHostPort(addr, fmt.Sprint(port)) }

// echoes sends over a connection and reads it back.
func echoes(c net.Conn, s string) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, s); err != nil {
		return err
	}
	b := make([]byte, len(s))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != s {
		return fmt.Errorf("read %q, want %q", b, s)
	}
	return nil
}

func (b *box) reach(network, address string) error {
	c, err := dial(b.NetSpace, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	return echoes(c, "hello")
}

func (b *box) reaches(network, address string) {
	b.w.t.Helper()
	if err := b.reach(network, address); err != nil {
		b.w.t.Errorf("%s %s: %v", network, address, err)
	}
}

// refused wants a refusal at once: neither success nor silence.
func (b *box) refused(network, address string) {
	b.w.t.Helper()
	err := b.reach(network, address)
	var ne net.Error
	switch {
	case err == nil:
		b.w.t.Errorf("%s %s is reachable", network, address)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout():
		b.w.t.Errorf("%s %s: silence instead of a refusal", network, address)
	}
}

// server serves TCP echoes on a port of all addresses of a namespace.
func server(t testing.TB, s *linux.NetSpace, port int) {
	t.Helper()
	var l net.Listener
	must(t, s.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	serveEcho(t, l)
}

// serveEcho serves until the test ends.
func serveEcho(t testing.TB, l net.Listener) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// udpServer echoes datagrams; what it gets is also sent to the channel.
func udpServer(t testing.TB, s *linux.NetSpace, address string) <-chan string {
	t.Helper()
	var pc net.PacketConn
	must(t, s.Do(func() (err error) {
		pc, err = net.ListenPacket("udp", address)
		return err
	}))
	got := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 65536)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			select {
			case got <- string(b[:n]):
			default:
			}
			_, _ = pc.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() {
		pc.Close()
		<-done
	})
	return got
}

// within waits for a condition.
func within(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *box) denied(r datapath.Reason) uint64 {
	b.w.t.Helper()
	c, err := b.w.dp.Counters(b.slot)
	must(b.w.t, err)
	return c.Denied[r]
}
