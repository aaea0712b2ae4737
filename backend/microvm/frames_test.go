package microvm_test

import (
	"encoding/binary"
	"net/netip"
)

// lan is who is where, for frames that a guest makes up.
type lan struct {
	me, gateway              [6]byte
	own4, own6, site4, site6 netip.Addr
}

type frame struct {
	name   string
	reason string // of the event; "" where there is none
	bytes  []byte
}

// hostile are frames of which none may pass.
func (l *lan) hostile() []frame {
	other := l.me
	other[5]++
	n4, n6 := l.own4.Next(), l.own6.Next()
	gw4, gw6 := netip.MustParseAddr("100.127.128.1"), netip.MustParseAddr("fdd5:ec00::1")
	all := netip.MustParseAddr("ff02::1")
	everybody := [6]byte{255, 255, 255, 255, 255, 255}
	fragment := l.ip4(l.own4, 0x2000, l.udp(l.own4, l.site4, "evil"))
	tagged := append([]byte{0, 5, 8, 0}, l.ip4(l.own4, 0, l.udp(l.own4, l.site4, "evil"))...)
	arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, l.me[:]...)
	arp = append(append(append(arp, gw4.AsSlice()...), everybody[:]...), l.own4.AsSlice()...)
	advert := append([]byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, 1, 1)
	neighbour := append(append([]byte{0xa0, 0, 0, 0}, gw6.AsSlice()...), 2, 1)
	return []frame{
		{"another hardware address", "source", l.udp4(other, l.own4, "evil")},
		{"the gateway's hardware address", "source", l.udp4(l.gateway, l.own4, "evil")},
		{"another's IPv4 address", "source", l.udp4(l.me, n4, "evil")},
		{"another's IPv6 address", "source", eth(l.gateway, l.me, 0x86dd, l.ip6(n6, l.site6, 17, l.udp(n6, l.site6, "evil")))},
		{"a link-local address", "source", eth(l.gateway, l.me, 0x86dd, l.ip6(netip.MustParseAddr("fe80::1"), l.site6, 17, l.udp(netip.MustParseAddr("fe80::1"), l.site6, "evil")))},
		{"a fragment", "fragment", eth(l.gateway, l.me, 0x0800, fragment)},
		{"a VLAN tag", "protocol", eth(l.gateway, l.me, 0x8100, tagged)},
		{"MPLS", "protocol", eth(l.gateway, l.me, 0x8847, tagged)},
		{"PPPoE", "protocol", eth(l.gateway, l.me, 0x8864, tagged)},
		{"a frame of no protocol", "protocol", eth(l.gateway, l.me, 0x22f3, tagged)},
		{"an ARP answer as the gateway", "", eth(everybody, l.me, 0x0806, arp)},
		{"a router advertisement", "", eth([6]byte{0x33, 0x33, 0, 0, 0, 1}, l.me, 0x86dd, l.ip6(l.own6, all, 58, icmp6(l.own6, all, 134, append(advert, l.me[:]...))))},
		{"a neighbour advertisement as the gateway", "", eth(l.gateway, l.me, 0x86dd, l.ip6(l.own6, gw6, 58, icmp6(l.own6, gw6, 136, append(neighbour, l.me[:]...))))},
		{"a redirect", "", eth(l.gateway, l.me, 0x86dd, l.ip6(l.own6, gw6, 58, icmp6(l.own6, gw6, 137, make([]byte, 36))))},
	}
}

func (l *lan) udp4(from [6]byte, source netip.Addr, body string) []byte {
	return eth(l.gateway, from, 0x0800, l.ip4(source, 0, l.udp(source, l.site4, body)))
}

func eth(to, from [6]byte, kind uint16, body []byte) []byte {
	b := append(append([]byte{}, to[:]...), from[:]...)
	return append(binary.BigEndian.AppendUint16(b, kind), body...)
}

// ip4 is a datagram to the site.
func (l *lan) ip4(from netip.Addr, fragment uint16, body []byte) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(body)))
	binary.BigEndian.PutUint16(h[6:], fragment)
	copy(h[12:], from.AsSlice())
	copy(h[16:], l.site4.AsSlice())
	binary.BigEndian.PutUint16(h[10:], sum(h))
	return append(h, body...)
}

func (l *lan) ip6(from, to netip.Addr, next uint8, body []byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, next, 255
	binary.BigEndian.PutUint16(h[4:], uint16(len(body)))
	copy(h[8:], from.AsSlice())
	copy(h[24:], to.AsSlice())
	return append(h, body...)
}

func (l *lan) udp(from, to netip.Addr, body string) []byte {
	b := []byte{3, 232, 35, 40, 0, byte(8 + len(body)), 0, 0} // ports 1000 and 9000
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[6:], sum(pseudo(from, to, 17, len(b)), b))
	return b
}

func icmp6(from, to netip.Addr, kind uint8, body []byte) []byte {
	b := append([]byte{kind, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(b[2:], sum(pseudo(from, to, 58, len(b)), b))
	return b
}

func pseudo(from, to netip.Addr, protocol uint8, n int) []byte {
	return append(append(from.AsSlice(), to.AsSlice()...), 0, 0, 0, byte(n), 0, 0, 0, protocol)
}

// sum is the internet's checksum.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(p[i])<<8 | uint32(p[i+1])
		}
		if len(p)%2 == 1 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
