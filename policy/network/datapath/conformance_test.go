package datapath_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

func TestEBPF(t *testing.T) { conformance(t, datapath.OpenEBPF) }
func TestNftables(t *testing.T) {
	needTool(t, "nftables")
	conformance(t, datapath.OpenNftables)
}

// conformance is what every datapath must do.
func conformance(t *testing.T, open opener) { conformanceOf(t, open, false) }

func conformanceOf(t *testing.T, open opener, taps bool) {
	needRoot(t)
	for _, c := range []struct {
		name string
		f    func(*testing.T, *world)
	}{
		{"rules", testRules},
		{"attach", testAttach},
		{"never", testNever},
		{"swap", testSwap},
		{"learn", testLearn},
		{"proxy", testProxy},
		{"resolver", testResolver},
		{"inbound", testInbound},
		{"limits", testLimits},
		{"flows", testFlows},
		{"manyRules", testManyRules},
		{"ports", testPorts},
		{"frames", testFrames},
		{"neighbours", testNeighbours},
		{"nested", testNested},
		{"members", testMembers},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, open)
			w.taps = taps
			server(t, w.internet, portTCP)
			c.f(t, w)
		})
	}
}

func testRules(t *testing.T, w *world) {
	udpServer(t, w.internet, at(site4, portUDP))
	udpServer(t, w.internet, at(site6, portUDP))
	b := w.sandbox(3)
	for _, a := range []string{site4, site6} { // nothing is allowed before there is a policy
		b.refused("tcp", at(a, portTCP))
		b.refused("udp", at(a, portUDP))
	}
	b.set(
		entry(site4+"/32", network.TCP, portTCP, portTCP, network.VerdictAllow),
		entry(site6+"/128", network.TCP, portTCP, portTCP, network.VerdictAllow),
	)
	for _, a := range []string{site4, site6} {
		b.reaches("tcp", at(a, portTCP))
		b.refused("udp", at(a, portUDP))
		b.refused("tcp", at(a, portTCP+1))
		if err := b.ping(a); err == nil {
			t.Errorf("%s answers echoes without a rule", a)
		}
	}
	b.refused("tcp", at(other4, portTCP))
	b.refused("tcp", at(other6, portTCP))
	b.set(
		entry("203.0.113.0/24", network.UDP, portUDP-1, portUDP+1, network.VerdictAllow),
		entry("2001:db8:1::/48", network.UDP, 0, 65535, network.VerdictAllow),
		entry("2001:db8:1::/48", network.ICMP, 0, 65535, network.VerdictAllow),
		entry("203.0.113.0/24", network.ICMP, 0, 65535, network.VerdictAllow),
	)
	for _, a := range []string{site4, site6} {
		b.reaches("udp", at(a, portUDP))
		b.refused("tcp", at(a, portTCP))
		if err := b.ping(a); err != nil {
			t.Errorf("echo of %s: %v", a, err)
		}
		// A port that nobody listens at: the error of the far end comes through.
		if err := b.reach("udp", at(a, portUDP+1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a closed port of %s: %v", a, err)
		}
	}
	// The longest prefix decides alone.
	b.set(allow("0.0.0.0/0"), allow("::/0"), entry(other4+"/32", network.Any, 0, 65535, network.VerdictDeny), entry(other6+"/128", network.Any, 0, 65535, network.VerdictDeny))
	b.reaches("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
	b.refused("tcp", at(other4, portTCP))
	b.refused("tcp", at(other6, portTCP))
	// A rule for all of IPv6 is none for IPv4, and the reverse.
	b.set(allow("::/0"))
	b.refused("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
	b.set(allow("0.0.0.0/0"))
	b.reaches("tcp", at(site4, portTCP))
	b.refused("tcp", at(site6, portTCP))
}

func testAttach(t *testing.T, w *world) {
	b := w.sandbox(4)
	if err := w.dp.Attach(4, datapath.Attachment{Index: link.Index(4)}); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("attached twice: %v", err)
	}
	for _, slot := range []int{-1, link.Slots} {
		if err := w.dp.Attach(slot, datapath.Attachment{Index: 1}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("slot %d: %v", slot, err)
		}
	}
	if err := w.dp.Set(5, 1, nil); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("set of a slot that is not attached: %v", err)
	}
	if err := w.dp.Attach(6, datapath.Attachment{Index: link.Index(6)}); err == nil {
		t.Error("attached to a link that is not there")
	}
	for name, entries := range map[string][]network.Entry{
		"host bits":      {allow("203.0.113.1/24")},
		"no prefix":      {{}},
		"reversed ports": {entry(site4+"/32", network.TCP, 2, 1, network.VerdictAllow)},
		"overlap":        {entry(site4+"/32", network.TCP, 1, 9, network.VerdictAllow), entry(site4+"/32", network.TCP, 9, 10, network.VerdictCheck)},
		"checked UDP":    {entry(site4+"/32", network.UDP, 443, 443, network.VerdictCheck)},
	} {
		if err := w.dp.Set(4, 1, entries); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.set(allow("0.0.0.0/0"))
	must(t, w.dp.Set(4, 1, []network.Entry{allow("0.0.0.0/0")})) // the same again is no error
	if err := w.dp.Set(4, 1, []network.Entry{allow("::/0")}); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("another policy of the same generation: %v", err)
	}
	must(t, w.dp.Set(4, 7, []network.Entry{allow("0.0.0.0/0")}))
	if err := w.dp.Set(4, 6, nil); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("an older generation: %v", err)
	}
	if g, err := w.dp.Generation(4); err != nil || g != 7 {
		t.Errorf("generation %d, %v", g, err)
	}
	if got := w.dp.Slots(); !slices.Equal(got, []int{4}) {
		t.Errorf("slots %v", got)
	}
	c, err := dial(b.NetSpace, "tcp", at(site4, portTCP))
	must(t, err)
	defer c.Close()
	must(t, echoes(c, "x"))
	must(t, w.dp.Clear(4))
	must(t, w.dp.Clear(4))
	if got := w.dp.Slots(); len(got) != 0 {
		t.Errorf("slots %v", got)
	}
	// The next sandbox of the slot begins with nothing, and inherits no flow.
	must(t, w.router.Remove(4))
	b2 := w.sandbox(4)
	b2.refused("tcp", at(site4, portTCP))
	if f, err := w.dp.Flows(4); err != nil || len(f) != 0 {
		t.Errorf("flows %v, %v", f, err)
	}
	if n, err := w.dp.Counters(4); err != nil || n.Live != 0 {
		t.Errorf("counters %v, %v", n, err)
	}
}

// testNever has rules that allow everything.
func testNever(t *testing.T, w *world) {
	server(t, w.host, portTCP)
	b, victim := w.sandbox(1), w.sandbox(2)
	server(t, victim.NetSpace, portTCP)
	plan := w.router.Plan()
	all := []network.Entry{allow("0.0.0.0/0"), allow("::/0")}
	never := []string{
		host4, host6, w.linkCfg.Uplink.Host4.Addr().String(), w.linkCfg.Uplink.Host6.Addr().String(),
		plan.Gateway4().String(), plan.Gateway6().String(), victim.addr4().String(), victim.addr6().String(),
		"169.254.169.254", "fd00:ec2::254", "100.100.100.200", "0.1.2.3", "240.0.0.1", "64:ff9b::203.0.113.10", "2002:cb00:710a::1", "fec0::1",
	}
	for _, a := range never { // even where a rule names it
		addr := netip.MustParseAddr(a)
		all = append(all, allow(netip.PrefixFrom(addr, addr.BitLen()).String()))
	}
	b.set(all...)
	victim.set(all...)
	b.reaches("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
	for _, a := range never {
		b.refused("tcp", at(a, portTCP))
	}
	// What the host gets by the uplink is not for itself, even if nobody named its address.
	must(t, w.dp.Forbid(nil))
	for _, a := range []string{host4, host6, w.linkCfg.Uplink.Host4.Addr().String()} {
		if c, err := dialBriefly(b.NetSpace, a); err == nil {
			c.Close()
			t.Errorf("the host's %s is reachable", a)
		}
	}
	must(t, w.dp.Forbid([]netip.Prefix{prefix(site4 + "/32")}))
	b.refused("tcp", at(site4, portTCP))
	must(t, w.dp.Forbid(nil))
	b.reaches("tcp", at(site4, portTCP))
	before := b.denied(datapath.Multicast)
	for _, a := range []string{"224.0.0.251", "255.255.255.255", "239.1.2.3"} {
		if c, err := dial(b.NetSpace, "udp", at(a, 5353)); err == nil {
			_, _ = io.WriteString(c, "x")
			c.Close()
		}
	}
	within(t, "multicast packets are denied", func() bool { return b.denied(datapath.Multicast)-before >= 2 })
}

func dialBriefly(s interface{ Do(func() error) error }, a string) (net.Conn, error) {
	var c net.Conn
	err := s.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", at(a, portTCP), 300*time.Millisecond)
		return err
	})
	return c, err
}

// testSwap changes a policy under open connections.
func testSwap(t *testing.T, w *world) {
	b := w.sandbox(9)
	b.set(allow("203.0.113.0/24"), allow("2001:db8:1::/48"))
	var keep, cut []net.Conn
	for _, a := range []string{site4, site6, other4, other6} {
		c, err := dial(b.NetSpace, "tcp", at(a, portTCP))
		must(t, err)
		defer c.Close()
		must(t, echoes(c, "before"))
		if a == site4 || a == site6 {
			keep = append(keep, c)
		} else {
			cut = append(cut, c)
		}
	}
	b.set(allow(site4+"/32"), entry(site6+"/128", network.TCP, portTCP, portTCP, network.VerdictAllow))
	for _, c := range keep {
		if err := echoes(c, "after"); err != nil {
			t.Errorf("%s is still allowed: %v", c.RemoteAddr(), err)
		}
	}
	for _, c := range cut {
		if err := echoes(c, "after"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Errorf("%s is no longer allowed: %v", c.RemoteAddr(), err)
		}
	}
	// Nor does what the far end sends come in.
	b.set()
	for _, c := range keep {
		if err := echoes(c, "x"); err == nil {
			t.Errorf("%s is open after all", c.RemoteAddr())
		}
	}
	b.refused("tcp", at(site4, portTCP))
	// A flow that is allowed again is a new one.
	b.set(allow("0.0.0.0/0"))
	b.reaches("tcp", at(site4, portTCP))
}

func testLearn(t *testing.T, w *world) {
	b := w.sandbox(11)
	b.set(entry("0.0.0.0/0", network.Any, 0, 65535, network.VerdictDeny), entry("::/0", network.Any, 0, 65535, network.VerdictDeny))
	tcp := []network.Opening{{Protocol: network.TCP, From: portTCP, To: portTCP, Verdict: network.VerdictAllow}}
	soon := func() time.Time { return time.Now().Add(time.Hour) }
	for _, a := range []string{site4, site6} {
		b.refused("tcp", at(a, portTCP))
		must(t, w.dp.Learn(b.slot, b.gen, netip.MustParseAddr(a), tcp, soon()))
		b.reaches("tcp", at(a, portTCP))
		b.refused("tcp", at(a, portTCP+1))
	}
	b.refused("tcp", at(other4, portTCP))
	// Another name with the same address adds its ports.
	server(t, w.internet, portTCP+1)
	must(t, w.dp.Learn(b.slot, b.gen, netip.MustParseAddr(site4), []network.Opening{{Protocol: network.TCP, From: portTCP + 1, To: portTCP + 1, Verdict: network.VerdictAllow}}, soon()))
	b.reaches("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site4, portTCP+1))
	// It ends with its time; what was open by then stays open.
	must(t, w.dp.Learn(b.slot, b.gen, netip.MustParseAddr(other4), tcp, time.Now().Add(500*time.Millisecond)))
	c, err := dial(b.NetSpace, "tcp", at(other4, portTCP))
	must(t, err)
	defer c.Close()
	within(t, "the learned address expires", func() bool { return b.reach("tcp", at(other4, portTCP)) != nil })
	if err := echoes(c, "later"); err != nil {
		t.Errorf("a connection that was open when its address expired: %v", err)
	}
	// A new generation knows only what was learned for it, which may be ahead of time.
	must(t, w.dp.Learn(b.slot, b.gen+1, netip.MustParseAddr(site6), tcp, soon()))
	b.reaches("tcp", at(site4, portTCP))
	b.set(entry("0.0.0.0/0", network.Any, 0, 65535, network.VerdictDeny))
	b.refused("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
	if err := w.dp.Learn(b.slot, b.gen-1, netip.MustParseAddr(site4), tcp, soon()); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("learned for an old generation: %v", err)
	}
	for _, a := range []string{"10.0.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1", host4, w.router.Plan().Gateway4().String(), "224.0.0.1"} {
		if err := w.dp.Learn(b.slot, b.gen, netip.MustParseAddr(a), tcp, soon()); !errors.Is(err, sandbox.ErrPermission) {
			t.Errorf("learned %s: %v", a, err)
		}
	}
	if !w.dp.Capabilities().QuickChanges {
		return // a transaction for each: too slow to reach the bound
	}
	full := 0
	for i := range datapath.LearnedAddresses + 1 {
		a := netip.AddrFrom4([4]byte{44, 18, byte(i >> 8), byte(i)})
		if err := w.dp.Learn(b.slot, b.gen, a, tcp, soon()); errors.Is(err, sandbox.ErrExhausted) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 {
		t.Error("the number of learned addresses has no bound")
	}
}

func testProxy(t *testing.T, w *world) {
	b := w.sandbox(12)
	check := func(p string) network.Entry { return entry(p, network.TCP, portTCP, portTCP, network.VerdictCheck) }
	b.set(check(site4+"/32"), check(site6+"/128"), allow(other4+"/32"))
	b.refused("tcp", at(site4, portTCP)) // nobody checks: it is not let through
	b.refused("tcp", at(site6, portTCP))
	if c, err := w.dp.Counters(b.slot); err != nil || c.Live != 0 {
		t.Errorf("%d flows of connections that were refused, %v", c.Live, err)
	}
	for _, g := range []netip.Addr{w.router.Plan().Gateway4(), w.router.Plan().Gateway6()} {
		l, err := w.router.Listen(netip.AddrPortFrom(g, w.cfg.ProxyPort), true)
		must(t, err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					fmt.Fprintf(c, "%s asked for %s\n", c.RemoteAddr().(*net.TCPAddr).IP, c.LocalAddr())
					_, _ = io.Copy(c, c)
				}()
			}
		}()
	}
	for a, from := range map[string]netip.Addr{site4: b.addr4(), site6: b.addr6()} {
		for range 20 {
			c, err := dial(b.NetSpace, "tcp", at(a, portTCP))
			must(t, err)
			_ = c.SetDeadline(time.Now().Add(patience))
			want := fmt.Sprintf("%s asked for %s\n", from, at(a, portTCP))
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Errorf("the proxy says %q, %v; want %q", got, err, want)
			}
			if err := echoes(c, "through the proxy"); err != nil {
				t.Error(err)
			}
			c.Close()
		}
		b.refused("udp", at(a, 443))
	}
	b.reaches("tcp", at(other4, portTCP)) // directly
	b.refused("tcp", at(w.router.Plan().Gateway4().String(), int(w.cfg.ProxyPort)))
	// A connection that began directly is not handed to the proxy half way.
	c, err := dial(b.NetSpace, "tcp", at(other4, portTCP))
	must(t, err)
	defer c.Close()
	b.set(check(other4 + "/32"))
	if err := echoes(c, "x"); err == nil {
		t.Error("a direct connection goes on although it is to be checked now")
	}
}

func testResolver(t *testing.T, w *world) {
	b := w.sandbox(13)
	for _, g := range []netip.Addr{w.router.Plan().Gateway4(), w.router.Plan().Gateway6()} {
		pc, err := w.router.ListenPacket(netip.AddrPortFrom(g, datapath.DNSPort))
		must(t, err)
		defer pc.Close()
		go func() {
			buf := make([]byte, 512)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}()
		l, err := w.router.Listen(netip.AddrPortFrom(g, datapath.DNSPort), false)
		must(t, err)
		serveEcho(t, l)
		b.reaches("udp", at(g.String(), datapath.DNSPort)) // before there is a policy
		b.reaches("tcp", at(g.String(), datapath.DNSPort))
		b.refused("udp", at(g.String(), datapath.DNSPort+1))
	}
	b.refused("udp", at(site4, 53)) // other resolvers need a rule
}

func testInbound(t *testing.T, w *world) {
	b := w.sandbox(14)
	server(t, b.NetSpace, portTCP)
	ctx := t.Context()
	for _, a := range []netip.Addr{b.addr4(), b.addr6()} {
		c, err := w.router.Dial(ctx, netip.AddrPortFrom(a, portTCP)) // the port proxy needs no rule
		must(t, err)
		defer c.Close()
		must(t, echoes(c, "inbound"))
		b.set(allow("0.0.0.0/0")) // and no policy cuts it
		must(t, echoes(c, "still"))
	}
	// The host has no business there, even with a route.
	up, err := hostUplink(w)
	must(t, err)
	must(t, addRoute(w.host, up, w.router.Plan().Pool4, w.linkCfg.Uplink.Router4.Addr()))
	must(t, addRoute(w.host, up, w.router.Plan().Pool6, w.linkCfg.Uplink.Router6.Addr()))
	for _, a := range []netip.Addr{b.addr4(), b.addr6()} {
		if c, err := dialBriefly(w.host, a.String()); err == nil {
			c.Close()
			t.Errorf("%s is reachable from the host", a)
		}
	}
}

func testLimits(t *testing.T, w *world) {
	got := udpServer(t, w.internet, at(site4, portUDP))
	b := w.sandbox(15)
	b.set(allow("0.0.0.0/0"))
	must(t, w.dp.Limit(b.slot, network.Limits{Connections: 3}))
	var open []net.Conn
	for range 3 {
		c, err := dial(b.NetSpace, "tcp", at(site4, portTCP))
		must(t, err)
		defer c.Close()
		must(t, echoes(c, "x"))
		open = append(open, c)
	}
	b.refused("tcp", at(site4, portTCP))
	if b.denied(datapath.TooManyFlows) == 0 {
		t.Error("not counted")
	}
	must(t, open[0].Close())
	within(t, "another connection", func() bool { return b.reach("tcp", at(site4, portTCP)) == nil })
	must(t, w.dp.Limit(b.slot, network.Limits{Bandwidth: 1000}))
	c, err := dial(b.NetSpace, "udp", at(site4, portUDP))
	must(t, err)
	defer c.Close()
	for range 400 {
		_, _ = c.Write(make([]byte, 1400))
	}
	within(t, "packets over the rate", func() bool { return b.denied(datapath.OverRate) > 0 })
	if n := len(got); n >= 399 {
		t.Errorf("%d of 400 packets of 1400 bytes passed at 1000 bytes a second", n)
	}
	must(t, w.dp.Limit(b.slot, network.Limits{}))
	within(t, "the limit is off", func() bool { return b.reach("udp", at(site4, portUDP)) == nil })
}

func testFlows(t *testing.T, w *world) {
	b := w.sandbox(16)
	b.set(allow(site4+"/32"), allow(site6+"/128"))
	for _, a := range []string{site4, site6} {
		c, err := dial(b.NetSpace, "tcp", at(a, portTCP))
		must(t, err)
		must(t, echoes(c, "0123456789"))
		flows, err := w.dp.Flows(b.slot)
		must(t, err)
		i := slices.IndexFunc(flows, func(f datapath.Flow) bool { return f.Remote == netip.MustParseAddrPort(at(a, portTCP)) })
		if i < 0 {
			t.Fatalf("no flow to %s in %v", a, flows)
		}
		f := flows[i]
		if f.Protocol != network.TCP || f.Closed || f.Inbound || f.Generation != b.gen || f.BytesOut < 10 || f.BytesIn < 10 || f.PacketsOut < 3 ||
			int(f.LocalPort) != c.LocalAddr().(*net.TCPAddr).Port {
			t.Errorf("flow %+v", f)
		}
		c.Close()
		within(t, "the flow is closed", func() bool {
			flows, err := w.dp.Flows(b.slot)
			must(t, err)
			return slices.ContainsFunc(flows, func(f datapath.Flow) bool { return f.Remote == netip.MustParseAddrPort(at(a, portTCP)) && f.Closed })
		})
	}
	if c, err := w.dp.Counters(b.slot); err != nil || c.BytesOut == 0 || c.BytesIn == 0 || c.PacketsOut < 6 || c.PacketsIn < 6 {
		t.Errorf("counters %+v, %v", c, err)
	}
	b.refused("tcp", at(other4, portTCP))
	if !w.dp.Capabilities().DenialEvents {
		return // they are counted only
	}
	within(t, "an event of the denial", func() bool {
		select {
		case ev := <-w.dp.Events():
			return ev.Kind == datapath.Denied && ev.Slot == b.slot && ev.Reason == datapath.ByPolicy && ev.Protocol == network.TCP &&
				ev.Remote == netip.MustParseAddrPort(at(other4, portTCP)) && !ev.Inbound && time.Since(ev.Time) < time.Minute
		default:
			return false
		}
	})
	// Events are bounded; what is beyond is counted.
	for range 500 {
		_ = b.reach("tcp", at(other4, portTCP))
	}
	c, err := w.dp.Counters(b.slot)
	must(t, err)
	if c.EventsLost == 0 || c.Denied[datapath.ByPolicy] < 500 {
		t.Errorf("%d events lost of %d denials", c.EventsLost, c.Denied[datapath.ByPolicy])
	}
}

func testManyRules(t *testing.T, w *world) {
	b := w.sandbox(17)
	entries := []network.Entry{allow(site4 + "/32"), allow(site6 + "/128")}
	for i := range 5000 {
		entries = append(entries,
			entry(netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24).String(), network.TCP, uint16(i%50), 65535, network.VerdictAllow),
			entry(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x24, 1, byte(i >> 8), byte(i)}), 48).String(), network.TCP, 443, 443, network.VerdictAllow))
	}
	b.set(entries...)
	b.reaches("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
	b.refused("tcp", at(other4, portTCP))
	b.refused("tcp", at("2401:1:1::1", 80))
	b2 := w.sandbox(18) // the same content for another
	b2.set(entries...)
	b2.reaches("tcp", at(site4, portTCP))
	b.set()
	b.refused("tcp", at(site4, portTCP))
	b2.reaches("tcp", at(site4, portTCP))
}

// testPorts has as many ranges of one address as there may be.
func testPorts(t *testing.T, w *world) {
	b := w.sandbox(19)
	var entries []network.Entry
	for i := range network.MaxEntries {
		port := uint16(portTCP - 2*i)
		entries = append(entries, entry(site4+"/32", network.TCP, port, port, network.VerdictAllow))
	}
	b.set(entries...)
	b.reaches("tcp", at(site4, portTCP))
	low := portTCP - 2*(network.MaxEntries-1)
	server(t, w.internet, low)
	server(t, w.internet, low+1)
	b.reaches("tcp", at(site4, low))
	b.refused("tcp", at(site4, low+1))
	err := w.dp.Set(b.slot, b.gen+1, append(entries, entry(site4+"/32", network.UDP, 1, 1, network.VerdictAllow)))
	if !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a range too many: %v", err)
	}
}
