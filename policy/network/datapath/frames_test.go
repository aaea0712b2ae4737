package datapath_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// wire sends and receives frames on an interface, as root in a sandbox may.
type wire struct {
	fd    int
	index int
}

func openWire(t testing.TB, s *linux.NetSpace, name string) *wire {
	t.Helper()
	w := &wire{}
	must(t, s.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		const all = 0x0003
		fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, all<<8)
		if err != nil {
			return err
		}
		w.fd, w.index = fd, i.Index
		tv := syscall.NsecToTimeval(int64(patience))
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: all << 8, Ifindex: i.Index})
	}))
	t.Cleanup(func() { syscall.Close(w.fd) })
	return w
}

func (w *wire) send(t testing.TB, frame []byte) {
	t.Helper()
	must(t, syscall.Sendto(w.fd, frame, 0, &syscall.SockaddrLinklayer{Ifindex: w.index}))
}

// receive waits for a frame that comes in and is wanted.
func (w *wire) receive(want func([]byte) bool) error {
	b := make([]byte, 2048)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, from, err := syscall.Recvfrom(w.fd, b, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		const outgoing = 4
		if ll, ok := from.(*syscall.SockaddrLinklayer); ok && ll.Pkttype != outgoing && want(b[:n]) {
			return nil
		}
	}
	return os.ErrDeadlineExceeded
}

type mac = [6]byte

func eth(to, from mac, kind uint16, body []byte) []byte {
	b := append(append([]byte{}, to[:]...), from[:]...)
	return append(binary.BigEndian.AppendUint16(b, kind), body...)
}

func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			sum += uint32(p[i])<<8 | uint32(p[i+1])
		}
		if len(p)%2 == 1 {
			sum += uint32(p[len(p)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func ip4(from, to netip.Addr, protocol uint8, fragment uint16, options, body []byte) []byte {
	h := make([]byte, 20, 20+len(options))
	h = append(h, options...)
	h[0] = 0x40 | byte(len(h)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(body)))
	binary.BigEndian.PutUint16(h[4:], 77)
	binary.BigEndian.PutUint16(h[6:], fragment)
	h[8], h[9] = 64, protocol
	copy(h[12:], from.AsSlice())
	copy(h[16:], to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, body...)
}

func ip6(from, to netip.Addr, next uint8, body []byte) []byte {
	h := make([]byte, 40)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(len(body)))
	h[6], h[7] = next, 255
	copy(h[8:], from.AsSlice())
	copy(h[24:], to.AsSlice())
	return append(h, body...)
}

func pseudo(from, to netip.Addr, protocol uint8, n int) []byte {
	b := append(from.AsSlice(), to.AsSlice()...)
	return append(b, 0, 0, byte(n>>8), byte(n), 0, 0, 0, protocol)
}

func udp(from, to netip.Addr, sport, dport uint16, body string) []byte {
	b := make([]byte, 8)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(body)))
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[6:], checksum(pseudo(from, to, 17, len(b)), b))
	return b
}

func icmp(v6 bool, from, to netip.Addr, kind, code uint8, body []byte) []byte {
	b := append([]byte{kind, code, 0, 0}, body...)
	if v6 {
		binary.BigEndian.PutUint16(b[2:], checksum(pseudo(from, to, 58, len(b)), b))
	} else {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// testFrames sends what no ordinary program would, under a policy that allows everything.
func testFrames(t *testing.T, w *world) {
	got := udpServer(t, w.internet, at(site4, portUDP))
	got6 := udpServer(t, w.internet, at(site6, portUDP))
	b, other := w.sandbox(21), w.sandbox(22)
	b.set(allow("0.0.0.0/0"), allow("::/0"))
	other.set(allow("0.0.0.0/0"), allow("::/0"))
	p := w.router.Plan()
	gw, me := p.GatewayMAC(), p.MAC(21)
	a4, a6 := b.addr4(), b.addr6()
	s4, s6 := netip.MustParseAddr(site4), netip.MustParseAddr(site6)
	evil := udp(a4, s4, 1000, portUDP, "evil")
	evil6 := udp(a6, s6, 1000, portUDP, "evil")
	v4 := func(body []byte) []byte { return eth(gw, me, 0x0800, body) }
	v6 := func(body []byte) []byte { return eth(gw, me, 0x86dd, body) }
	o4, o6 := other.addr4(), other.addr6()
	mapped := netip.MustParseAddr("::ffff:" + site4)
	tag := append([]byte{0, 5, 0x08, 0}, ip4(a4, s4, 17, 0, nil, evil)...)
	option := func(kind uint8) []byte { return append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, evil6...) }
	for _, f := range []struct {
		name   string
		frame  []byte
		reason datapath.Reason
	}{
		{"another sandbox's address", v4(ip4(o4, s4, 17, 0, nil, udp(o4, s4, 1, portUDP, "evil"))), datapath.WrongSource},
		{"another sandbox's IPv6 address", v6(ip6(o6, s6, 17, udp(o6, s6, 1, portUDP, "evil"))), datapath.WrongSource},
		{"the gateway's address", v4(ip4(p.Gateway4(), s4, 17, 0, nil, udp(p.Gateway4(), s4, 1, portUDP, "evil"))), datapath.WrongSource},
		{"loopback's address", v4(ip4(netip.MustParseAddr("127.0.0.1"), s4, 17, 0, nil, evil)), datapath.WrongSource},
		{"no address", v4(ip4(netip.MustParseAddr("0.0.0.0"), s4, 17, 0, nil, evil)), datapath.WrongSource},
		{"a site's address", v4(ip4(s4, s4, 17, 0, nil, evil)), datapath.WrongSource},
		{"link-local source", v6(ip6(netip.MustParseAddr("fe80::1"), s6, 17, evil6)), datapath.WrongSource},
		{"another's hardware address", eth(gw, p.MAC(22), 0x0800, ip4(a4, s4, 17, 0, nil, evil)), datapath.WrongSource},
		{"the gateway's hardware address", eth(gw, gw, 0x0800, ip4(a4, s4, 17, 0, nil, evil)), datapath.WrongSource},
		{"to another's hardware address", eth(p.MAC(22), me, 0x0800, ip4(a4, s4, 17, 0, nil, evil)), datapath.Neighbour},
		{"IPv4 in IPv6 addresses", v6(ip6(mapped, s6, 17, evil6)), datapath.Forbidden},
		{"to IPv4 in IPv6", v6(ip6(a6, mapped, 17, evil6)), datapath.Forbidden},
		{"first fragment", v4(ip4(a4, s4, 17, 0x2000, nil, evil)), datapath.Fragment},
		{"later fragment", v4(ip4(a4, s4, 17, 0x0001, nil, evil)), datapath.Fragment},
		{"IPv6 fragment", v6(ip6(a6, s6, 44, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, evil6...))), datapath.Fragment},
		{"source routing", v4(ip4(a4, s4, 17, 0, []byte{131, 7, 4, 8, 8, 8, 8, 0}, evil)), datapath.WrongProtocol},
		{"hop-by-hop options", v6(ip6(a6, s6, 0, option(0))), datapath.WrongProtocol},
		{"destination options", v6(ip6(a6, s6, 60, option(60))), datapath.WrongProtocol},
		{"routing header", v6(ip6(a6, s6, 43, option(43))), datapath.WrongProtocol},
		{"IP in IP", v4(ip4(a4, s4, 4, 0, nil, ip4(o4, s4, 17, 0, nil, evil))), datapath.WrongProtocol},
		{"6in4", v4(ip4(a4, s4, 41, 0, nil, ip6(a6, s6, 17, evil6))), datapath.WrongProtocol},
		{"GRE", v4(ip4(a4, s4, 47, 0, nil, append([]byte{0, 0, 8, 0}, ip4(a4, s4, 17, 0, nil, evil)...))), datapath.WrongProtocol},
		{"IPv6 in IPv6", v6(ip6(a6, s6, 41, ip6(a6, s6, 17, evil6))), datapath.WrongProtocol},
		{"SCTP", v4(ip4(a4, s4, 132, 0, nil, make([]byte, 32))), datapath.WrongProtocol},
		{"ESP", v4(ip4(a4, s4, 50, 0, nil, make([]byte, 32))), datapath.WrongProtocol},
		{"ICMP of the other family", v4(ip4(a4, s4, 58, 0, nil, make([]byte, 16))), datapath.WrongProtocol},
		{"redirect", v4(ip4(a4, s4, 1, 0, nil, icmp(false, a4, s4, 5, 1, append(make([]byte, 4), ip4(s4, a4, 17, 0, nil, evil)...)))), datapath.WrongProtocol},
		{"VLAN tag", eth(gw, me, 0x8100, tag), datapath.WrongProtocol},
		{"two VLAN tags", eth(gw, me, 0x88a8, append([]byte{0, 5, 0x81, 0}, tag...)), datapath.WrongProtocol},
		{"MPLS", eth(gw, me, 0x8847, ip4(a4, s4, 17, 0, nil, evil)), datapath.WrongProtocol},
		{"a short packet", v4(make([]byte, 12)), datapath.Malformed},
		{"a length beyond the packet", v4(func() []byte { p := ip4(a4, s4, 17, 0, nil, evil); p[2], p[3] = 9, 9; return p }()), datapath.Malformed},
		{"a TCP header beyond the packet", v4(ip4(a4, s4, 6, 0, nil, append(make([]byte, 12), 0xf0, 2, 0, 0, 0, 0, 0, 0))), datapath.Malformed},
		{"half a TCP header", v4(ip4(a4, s4, 6, 0, nil, make([]byte, 10))), datapath.Malformed},
		{"IPv6 in an IPv4 frame", v4(ip6(a6, s6, 17, evil6)), datapath.Malformed},
		{"multicast", eth(mac{1, 0, 0x5e, 0, 0, 251}, me, 0x0800, ip4(a4, netip.MustParseAddr("224.0.0.251"), 17, 0, nil, evil)), datapath.Multicast},
		{"broadcast", eth(mac{255, 255, 255, 255, 255, 255}, me, 0x0800, ip4(a4, netip.MustParseAddr("255.255.255.255"), 17, 0, nil, evil)), datapath.Multicast},
		{"DHCP", eth(mac{255, 255, 255, 255, 255, 255}, me, 0x0800, ip4(netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"), 17, 0, nil, udp(a4, s4, 68, 67, "x"))), datapath.Multicast},
		{"an error about a flow that is not there", v4(ip4(a4, s4, 1, 0, nil, icmp(false, a4, s4, 3, 3, append(make([]byte, 4), ip4(s4, a4, 17, 0, nil, udp(s4, a4, portUDP, 1, ""))...)))), datapath.Inbound},
		{"router advertisement", eth(mac{0x33, 0x33, 0, 0, 0, 1}, me, 0x86dd, ip6(a6, netip.MustParseAddr("ff02::1"), 58, icmp(true, a6, netip.MustParseAddr("ff02::1"), 134, 0, make([]byte, 12)))), datapath.Neighbour},
	} {
		before := b.denied(f.reason)
		openWireOnce(t, b).send(t, f.frame)
		if !w.dp.Capabilities().EveryReason {
			continue
		}
		within(t, f.name+" is denied as "+f.reason.String(), func() bool { return b.denied(f.reason) > before })
	}
	// What is right passes, and nothing that was wrong came before it.
	openWireOnce(t, b).send(t, v4(ip4(a4, s4, 17, 0, nil, udp(a4, s4, 1000, portUDP, "good"))))
	openWireOnce(t, b).send(t, v6(ip6(a6, s6, 17, udp(a6, s6, 1000, portUDP, "good"))))
	for _, c := range []<-chan string{got, got6} {
		select {
		case s := <-c:
			if s != "good" {
				t.Errorf("%q reached the server", s)
			}
		case <-time.After(patience):
			t.Error("an ordinary frame did not reach the server")
		}
	}
}

var wires = map[*box]*wire{}

func openWireOnce(t testing.TB, b *box) *wire {
	if w := wires[b]; w != nil {
		return w
	}
	wires[b] = openWire(t, b.NetSpace, link.Inside)
	t.Cleanup(func() { delete(wires, b) })
	return wires[b]
}

// testNeighbours asks for hardware addresses.
func testNeighbours(t *testing.T, w *world) {
	if !w.dp.Capabilities().Neighbours {
		t.Skip("ARP and ND are not answered: the gateway is a static neighbour")
	}
	b, other := w.sandbox(23), w.sandbox(24)
	b.set(allow("0.0.0.0/0"), allow("::/0"))
	p := w.router.Plan()
	me, gw := p.MAC(23), p.GatewayMAC()
	wire := openWire(t, b.NetSpace, link.Inside)
	arp := func(op uint16, fromMAC mac, from, to netip.Addr) []byte {
		a := []byte{0, 1, 8, 0, 6, 4, byte(op >> 8), byte(op)}
		a = append(append(a, fromMAC[:]...), from.AsSlice()...)
		a = append(append(a, make([]byte, 6)...), to.AsSlice()...)
		return eth(mac{255, 255, 255, 255, 255, 255}, me, 0x0806, a)
	}
	ns := func(from, target netip.Addr) []byte {
		group := target.As16()
		to := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: group[13], 14: group[14], 15: group[15]})
		body := append(append(make([]byte, 4), target.AsSlice()...), 1, 1)
		return eth(mac{0x33, 0x33, 0xff, group[13], group[14], group[15]}, me, 0x86dd, ip6(from, to, 58, icmp(true, from, to, 135, 0, append(body, me[:]...))))
	}
	for name, f := range map[string][]byte{
		"ARP for another sandbox":  arp(1, me, b.addr4(), other.addr4()),
		"ARP as another sandbox":   arp(1, me, other.addr4(), p.Gateway4()),
		"ARP probe":                arp(1, me, netip.MustParseAddr("0.0.0.0"), p.Gateway4()),
		"an ARP answer":            arp(2, me, p.Gateway4(), b.addr4()),
		"ND for another sandbox":   ns(b.addr6(), other.addr6()),
		"ND as another sandbox":    ns(other.addr6(), p.Gateway6()),
		"ND without an address":    ns(netip.MustParseAddr("::"), p.Gateway6()),
		"an unasked advertisement": eth(gw, me, 0x86dd, ip6(b.addr6(), p.Gateway6(), 58, icmp(true, b.addr6(), p.Gateway6(), 136, 0, append([]byte{0x20, 0, 0, 0}, p.Gateway6().AsSlice()...)))),
		"a redirect of IPv6":       eth(gw, me, 0x86dd, ip6(b.addr6(), p.Gateway6(), 58, icmp(true, b.addr6(), p.Gateway6(), 137, 0, make([]byte, 36)))),
	} {
		before := b.denied(datapath.Neighbour)
		wire.send(t, f)
		within(t, name+" is denied", func() bool { return b.denied(datapath.Neighbour) > before })
	}
	before := b.denied(datapath.WrongSource)
	wire.send(t, arp(1, p.MAC(24), b.addr4(), p.Gateway4()))
	within(t, "ARP with another's hardware address is denied", func() bool { return b.denied(datapath.WrongSource) > before })
	wire.send(t, arp(1, me, b.addr4(), p.Gateway4()))
	must(t, wire.receive(func(f []byte) bool {
		return len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 2 && mac(f[22:28]) == gw && netip.AddrFrom4([4]byte(f[28:32])) == p.Gateway4()
	}))
	wire.send(t, ns(b.addr6(), p.Gateway6()))
	must(t, wire.receive(func(f []byte) bool {
		if len(f) < 86 || f[12] != 0x86 || f[20] != 58 || f[54] != 136 {
			return false
		}
		from, to := netip.AddrFrom16([16]byte(f[22:38])), netip.AddrFrom16([16]byte(f[38:54]))
		if checksum(pseudo(from, to, 58, 32), f[54:86]) != 0 {
			t.Error("the advertisement's checksum is wrong")
		}
		return netip.AddrFrom16([16]byte(f[62:78])) == p.Gateway6() && mac(f[80:86]) == gw
	}))
	// A sandbox that forgets its gateway's hardware address finds it again.
	must(t, netlink(b.NetSpace, forgetNeighbours(t, b)...))
	b.reaches("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site6, portTCP))
}

func forgetNeighbours(t *testing.T, b *box) []linux.Request {
	var index int
	must(t, b.Do(func() (err error) {
		index, err = linux.LinkIndex(link.Inside)
		return err
	}))
	p := b.w.router.Plan()
	return []linux.Request{linux.DeleteNeighbour(index, p.Gateway4()), linux.DeleteNeighbour(index, p.Gateway6())}
}

// testNested makes namespaces inside of a sandbox, as root there may.
func testNested(t *testing.T, w *world) {
	got := udpServer(t, w.internet, at(site4, portUDP))
	b := w.sandbox(25)
	b.set(allow("203.0.113.0/24"))
	p := w.router.Plan()
	gw := p.GatewayMAC()
	child := newSpace(t)
	in, out := mac{2, 0, 0, 0, 9, 1}, mac{2, 0, 0, 0, 9, 2}
	inner := netip.MustParsePrefix("10.9.0.2/30")
	outer := netip.MustParsePrefix("10.9.0.1/30")
	must(t, netlink(b.NetSpace,
		linux.AddVeth(linux.VethEnd{Name: "c0", Index: 50, MAC: out}, linux.VethEnd{Name: "c1", Index: 50, MAC: in, Space: child.File()}, 0),
		linux.QuietLink(50), linux.UpLink(50), linux.AddAddress(50, outer)))
	must(t, netlink(child, linux.UpLink(1), linux.QuietLink(50), linux.UpLink(50), linux.AddAddress(50, inner),
		linux.AddRoute(linux.RouteTo{To: prefix("0.0.0.0/0"), Index: 50, Via: outer.Addr()})))
	must(t, b.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	// Forwarded with its own address: not the sandbox's.
	before := b.denied(datapath.WrongSource)
	c, err := dial(child, "udp", at(site4, portUDP))
	must(t, err)
	defer c.Close()
	_, _ = fmt.Fprint(c, "evil")
	within(t, "a forwarded packet is denied", func() bool { return b.denied(datapath.WrongSource) > before })
	// Hidden behind the sandbox's address it is the sandbox's, with the sandbox's rules.
	must(t, masquerade(b.NetSpace))
	cc, err := dial(child, "tcp", at(site4, portTCP))
	must(t, err)
	must(t, echoes(cc, "hello"))
	cc.Close()
	if c, err := dial(child, "tcp", at("192.0.2.1", portTCP)); err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			c.Close()
		}
		t.Errorf("what the sandbox may not reach, from a namespace inside: %v", err)
	}
	// Interfaces on top of the sandbox's have hardware addresses of their own.
	other := newSpace(t)
	must(t, netlink(b.NetSpace, linux.AddMacvlan(mustIndex(t, b, link.Inside), 60, other.File())))
	must(t, netlink(other, linux.QuietLink(60), linux.UpLink(60), linux.AddAddress(60, netip.PrefixFrom(b.addr4(), 32)),
		linux.AddNeighbour(60, p.Gateway4(), gw), linux.AddRoute(linux.RouteTo{To: prefix("0.0.0.0/0"), Index: 60, Via: p.Gateway4()})))
	before = b.denied(datapath.WrongSource)
	c2, err := dial(other, "udp", at(site4, portUDP))
	must(t, err)
	defer c2.Close()
	_, _ = fmt.Fprint(c2, "evil")
	within(t, "a macvlan's packet is denied", func() bool { return b.denied(datapath.WrongSource) > before })
	b.reaches("udp", at(site4, portUDP))
	if s := <-got; s != "hello" {
		t.Errorf("%q reached the server", s)
	}
}

func mustIndex(t testing.TB, b *box, name string) (index int) {
	t.Helper()
	must(t, b.Do(func() (err error) {
		index, err = linux.LinkIndex(name)
		return err
	}))
	return index
}

// ping sends an echo by a raw socket, and waits for the answer a moment.
func (b *box) ping(address string) error {
	a := netip.MustParseAddr(address)
	var c net.PacketConn
	err := b.Do(func() (err error) {
		if a.Is4() {
			c, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		} else {
			c, err = net.ListenPacket("ip6:58", "::")
		}
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	id := uint16(os.Getpid())
	body := append(binary.BigEndian.AppendUint16(nil, id), 0, 1, 'p', 'i', 'n', 'g')
	ask, answer := uint8(8), byte(0)
	if a.Is6() {
		ask, answer = 128, 129
	}
	if _, err := c.WriteTo(icmp(a.Is6(), b.addr6(), a, ask, 0, body), &net.IPAddr{IP: a.AsSlice()}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		if n < 8 {
			continue
		}
		if (a.Is4() && buf[0] == 3) || (a.Is6() && buf[0] == 1) {
			return fmt.Errorf("unreachable, code %d", buf[1])
		}
		if buf[0] == answer && from.(*net.IPAddr).IP.Equal(a.AsSlice()) && binary.BigEndian.Uint16(buf[4:]) == id {
			return nil
		}
	}
}
