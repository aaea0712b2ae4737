package linux

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// VethEnd is one end of a pair of virtual interfaces.
type VethEnd struct {
	Name  string
	Index int // 0: the kernel chooses
	MAC   [6]byte
	Up    bool
	Space *os.File // its network namespace; nil: the socket's
}

// AddVeth makes a pair. The far end may be in another namespace; it cannot choose its index there if that is taken.
func AddVeth(near, far VethEnd, mtu int) Request {
	body := linkHeader(near.Index, near.Up)
	body = linkAttributes(body, near, mtu)
	body = nest(body, unix.IFLA_LINKINFO, func(b []byte) []byte {
		b = attribute(b, unix.IFLA_INFO_KIND, []byte("veth"))
		return nest(b, unix.IFLA_INFO_DATA, func(b []byte) []byte {
			return nest(b, 1 /* VETH_INFO_PEER */, func(b []byte) []byte {
				b = append(b, linkHeader(far.Index, far.Up)...)
				b = linkAttributes(b, far, mtu)
				if far.Space != nil {
					b = attribute(b, unix.IFLA_NET_NS_FD, u32(uint32(far.Space.Fd())))
				}
				return b
			})
		})
	})
	return Request{kind: unix.RTM_NEWLINK, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: body,
		what: fmt.Sprintf("make interfaces %s and %s", near.Name, far.Name)}
}

// UpLink brings an interface up.
func UpLink(index int) Request {
	return Request{kind: unix.RTM_NEWLINK, body: linkHeader(index, true), what: fmt.Sprintf("bring interface %d up", index)}
}

// QuietLink keeps IPv6 from giving an interface an address by itself, and announcing it. Ahead of UpLink: it is too late then.
func QuietLink(index int) Request {
	body := nest(linkHeader(index, false), unix.IFLA_AF_SPEC, func(b []byte) []byte {
		return nest(b, unix.AF_INET6, func(b []byte) []byte {
			return attribute(b, unix.IFLA_INET6_ADDR_GEN_MODE, []byte{1 /* IN6_ADDR_GEN_MODE_NONE */})
		})
	})
	return Request{kind: unix.RTM_NEWLINK, body: body, what: fmt.Sprintf("keep interface %d quiet", index)}
}

// SettleLink returns when an interface sends. The end of a pair that was brought up first does so a moment after the second
// was, and loses what is sent before; its IPv6 addresses may be without effect for that moment.
func SettleLink(index int) Request {
	return Request{kind: unix.RTM_GETLINK, body: linkHeader(index, false), what: fmt.Sprintf("wait for interface %d", index)}
}

// DeleteLink removes an interface (and its pair); one that is not there is no error.
func DeleteLink(index int) Request {
	return Request{kind: unix.RTM_DELLINK, body: linkHeader(index, false), what: fmt.Sprintf("remove interface %d", index), fine: unix.ENODEV}
}

// AddAddress gives an interface an address, usable at once.
func AddAddress(index int, a netip.Prefix) Request {
	body := []byte{family(a.Addr()), uint8(a.Bits()), unix.IFA_F_NODAD, 0}
	body = binary.NativeEndian.AppendUint32(body, uint32(index))
	body = attribute(body, unix.IFA_LOCAL, a.Addr().AsSlice())
	body = attribute(body, unix.IFA_ADDRESS, a.Addr().AsSlice())
	return Request{kind: unix.RTM_NEWADDR, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, body: body,
		what: fmt.Sprintf("give interface %d the address %s", index, a)}
}

// RemoveAddress takes an address from an interface; one that it has not is no error.
func RemoveAddress(index int, a netip.Addr) Request {
	body := []byte{family(a), uint8(a.BitLen()), 0, 0}
	body = binary.NativeEndian.AppendUint32(body, uint32(index))
	body = attribute(body, unix.IFA_LOCAL, a.AsSlice())
	return Request{kind: unix.RTM_DELADDR, body: body, what: fmt.Sprintf("take the address %s from interface %d", a, index), fine: unix.EADDRNOTAVAIL}
}

// TakeAddress makes an IPv6 address that AddAddress gave take effect now: by itself it does when the kernel gets round to
// it, and what arrives before is lost.
func TakeAddress(index int, a netip.Addr) Request {
	return AddRoute(RouteTo{To: netip.PrefixFrom(a, a.BitLen()), Index: index, Table: unix.RT_TABLE_LOCAL, Deliver: true})
}

// AddNeighbour says which hardware address an address has, for good: nobody asks for it, and answers of others are not heard.
func AddNeighbour(index int, a netip.Addr, mac [6]byte) Request {
	body := []byte{family(a), 0, 0, 0}
	body = binary.NativeEndian.AppendUint32(body, uint32(index))
	body = binary.NativeEndian.AppendUint16(body, unix.NUD_PERMANENT)
	body = append(body, 0, 0)
	body = attribute(body, unix.NDA_DST, a.AsSlice())
	body = attribute(body, unix.NDA_LLADDR, mac[:])
	return Request{kind: unix.RTM_NEWNEIGH, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, body: body,
		what: fmt.Sprintf("note the neighbour %s on interface %d", a, index)}
}

// RouteTo is a route.
type RouteTo struct {
	To      netip.Prefix
	Index   int        // interface
	Via     netip.Addr // zero: on the link itself
	From    netip.Addr // source address of what this host sends; zero: the kernel chooses
	Table   uint32     // 0: main
	Deliver bool       // to this host itself, whatever the address
}

// AddRoute adds or replaces a route.
func AddRoute(r RouteTo) Request {
	scope, kind, flags := uint8(unix.RT_SCOPE_LINK), uint8(unix.RTN_UNICAST), uint32(0)
	if r.Via.IsValid() || !r.To.Addr().Is4() {
		scope = unix.RT_SCOPE_UNIVERSE
	}
	if r.Via.IsValid() {
		flags = unix.RTNH_F_ONLINK
	}
	if r.Deliver {
		scope, kind = unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	}
	if r.Table == 0 {
		r.Table = unix.RT_TABLE_MAIN
	}
	body := []byte{family(r.To.Addr()), uint8(r.To.Bits()), 0, 0, uint8(min(r.Table, 252)), unix.RTPROT_STATIC, scope, kind}
	body = binary.NativeEndian.AppendUint32(body, flags)
	if r.Table != unix.RT_TABLE_MAIN {
		body = attribute(body, unix.RTA_TABLE, u32(r.Table))
	} else {
		body[4] = unix.RT_TABLE_MAIN
	}
	body = attribute(body, unix.RTA_DST, r.To.Addr().AsSlice())
	body = attribute(body, unix.RTA_OIF, u32(uint32(r.Index)))
	if r.Via.IsValid() {
		body = attribute(body, unix.RTA_GATEWAY, r.Via.AsSlice())
	}
	if r.From.IsValid() {
		body = attribute(body, unix.RTA_PREFSRC, r.From.AsSlice())
	}
	return Request{kind: unix.RTM_NEWROUTE, flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE, body: body,
		what: fmt.Sprintf("add the route to %s", r.To)}
}

// AddMarkRule looks packets with a mark up in a table of their own; v6 says of which family.
func AddMarkRule(mark, table, priority uint32, v6 bool) Request {
	f := uint8(unix.AF_INET)
	if v6 {
		f = unix.AF_INET6
	}
	body := make([]byte, 12)
	body[0], body[7] = f, unix.FR_ACT_TO_TBL
	body = attribute(body, unix.FRA_FWMARK, u32(mark))
	body = attribute(body, unix.FRA_TABLE, u32(table))
	body = attribute(body, unix.FRA_PRIORITY, u32(priority))
	return Request{kind: unix.RTM_NEWRULE, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: body, what: "add a routing rule", fine: unix.EEXIST}
}

func linkHeader(index int, up bool) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	if up {
		binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP)
		binary.NativeEndian.PutUint32(b[12:], unix.IFF_UP)
	}
	return b
}

func linkAttributes(b []byte, e VethEnd, mtu int) []byte {
	b = attribute(b, unix.IFLA_IFNAME, append([]byte(e.Name), 0))
	if e.MAC != [6]byte{} {
		b = attribute(b, unix.IFLA_ADDRESS, e.MAC[:])
	}
	if mtu > 0 {
		b = attribute(b, unix.IFLA_MTU, u32(uint32(mtu)))
	}
	// Queues for every CPU cost memory and time, and a sandbox has a few CPUs at most.
	b = attribute(b, unix.IFLA_NUM_TX_QUEUES, u32(1))
	return attribute(b, unix.IFLA_NUM_RX_QUEUES, u32(1))
}

func attribute(b []byte, kind uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, v...)
	return append(b, make([]byte, -len(v)&3)...)
}

func nest(b []byte, kind uint16, f func([]byte) []byte) []byte {
	return attribute(b, kind|unix.NLA_F_NESTED, f(nil))
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// DeleteNeighbour undoes AddNeighbour.
func DeleteNeighbour(index int, a netip.Addr) Request {
	q := AddNeighbour(index, a, [6]byte{})
	q.kind, q.flags, q.what = unix.RTM_DELNEIGH, 0, fmt.Sprintf("forget the neighbour %s on interface %d", a, index)
	return q
}

// AddMacvlan makes an interface with a hardware address of its own on top of another, in a namespace.
func AddMacvlan(on, index int, space *os.File) Request {
	body := linkHeader(index, false)
	body = attribute(body, unix.IFLA_IFNAME, []byte("m0\x00"))
	body = attribute(body, unix.IFLA_LINK, u32(uint32(on)))
	body = attribute(body, unix.IFLA_NET_NS_FD, u32(uint32(space.Fd())))
	body = nest(body, unix.IFLA_LINKINFO, func(b []byte) []byte { return attribute(b, unix.IFLA_INFO_KIND, []byte("macvlan")) })
	return Request{kind: unix.RTM_NEWLINK, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: body, what: "make a macvlan"}
}

// AddHooks gives an interface places for programs in both directions.
func AddHooks(index int) Request {
	const clsact, parent = 0xffff0000, 0xfffffff1
	return Request{kind: unix.RTM_NEWQDISC, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, fine: unix.EEXIST,
		body: attribute(tcHeader(index, clsact, parent, 0), unix.TCA_KIND, []byte("clsact\x00")),
		what: fmt.Sprintf("make interface %d ready for programs", index)}
}

// RemoveHooks undoes AddHooks, with all programs; nothing there is no error.
func RemoveHooks(index int) Request {
	const clsact, parent = 0xffff0000, 0xfffffff1
	return Request{kind: unix.RTM_DELQDISC, fine: unix.EINVAL, body: tcHeader(index, clsact, parent, 0),
		what: fmt.Sprintf("take programs off interface %d", index)}
}

// HookProgram puts an eBPF program (by its descriptor) on an interface, or replaces the one that is there at once. It
// belongs to the interface from then on.
func HookProgram(index int, egress bool, program int, name string) Request {
	parent := uint32(0xfffffff2)
	if egress {
		parent = 0xfffffff3
	}
	const priority, all, direct = 1, 0x0300 /* ETH_P_ALL in network order */, 1
	body := tcHeader(index, 1, parent, priority<<16|all)
	body = attribute(body, unix.TCA_KIND, []byte("bpf\x00"))
	body = nest(body, unix.TCA_OPTIONS, func(b []byte) []byte {
		b = attribute(b, 6 /* TCA_BPF_FD */, u32(uint32(program)))
		b = attribute(b, 7 /* TCA_BPF_NAME */, append([]byte(name), 0))
		return attribute(b, 8 /* TCA_BPF_FLAGS */, u32(direct))
	})
	return Request{kind: unix.RTM_NEWTFILTER, flags: unix.NLM_F_CREATE, body: body, what: fmt.Sprintf("put program %s on interface %d", name, index)}
}

func tcHeader(index int, handle, parent, info uint32) []byte {
	e := binary.NativeEndian
	b := e.AppendUint32(make([]byte, 4), uint32(index))
	b = e.AppendUint32(b, handle)
	b = e.AppendUint32(b, parent)
	return e.AppendUint32(b, info)
}

// GroupLink puts an interface into a group.
func GroupLink(index int, group uint32) Request {
	return Request{kind: unix.RTM_NEWLINK, body: attribute(linkHeader(index, false), unix.IFLA_GROUP, u32(group)), fine: unix.ENODEV,
		what: fmt.Sprintf("put interface %d into a group", index)}
}

// DeleteGroup removes all interfaces of a group together, which costs what one costs; none is no error.
func DeleteGroup(group uint32) Request {
	return Request{kind: unix.RTM_DELLINK, body: attribute(linkHeader(0, false), unix.IFLA_GROUP, u32(group)), fine: unix.ENODEV,
		what: "remove a group of interfaces"}
}
