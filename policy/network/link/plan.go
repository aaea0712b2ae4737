package link

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/opendsec/dsec/sandbox"
)

// Slots is how many sandboxes with a network a node can have at once.
const Slots = 16384

// Range is a part of the slots, From to To-1: each kind of sandbox has its own, so that it can be handed out, and swept,
// without asking the others.
type Range struct{ From, To int }

// The ranges.
var (
	Containers   = Range{0, 12288}
	MicroVMs     = Range{12288, 15360}
	FullMachines = Range{15360, Slots}
)

// Has tells whether a slot lies in the range.
func (r Range) Has(slot int) bool { return slot >= r.From && slot < r.To }

// first is the place of slot 0 in the pools; the gateway is at place 1.
const first = 256

// Plan is the addressing of a node: a pure function of the slot, the same on every node, for nothing of it is
// seen outside of the router.
type Plan struct {
	Pool4 netip.Prefix // at most 17 bits long
	Pool6 netip.Prefix // at most 112 bits long
}

// DefaultPlan lies in ranges that are no node's own: of the shared address space (RFC 6598), and a unique local prefix.
func DefaultPlan() Plan {
	return Plan{Pool4: netip.MustParsePrefix("100.127.128.0/17"), Pool6: netip.MustParsePrefix("fdd5:ec00::/64")}
}

// Check says what is wrong with a plan: sandbox.ErrInvalid.
func (p Plan) Check() error {
	switch {
	case !p.Pool4.IsValid() || !p.Pool4.Addr().Is4() || p.Pool4.Bits() > 17 || p.Pool4.Masked() != p.Pool4:
		return fmt.Errorf("the sandboxes' IPv4 pool %s: give a prefix of 17 bits or fewer without host bits: %w", p.Pool4, sandbox.ErrInvalid)
	case !p.Pool6.IsValid() || p.Pool6.Addr().Is4() || p.Pool6.Addr().Is4In6() || p.Pool6.Bits() > 112 || p.Pool6.Masked() != p.Pool6:
		return fmt.Errorf("the sandboxes' IPv6 pool %s: give a prefix of 112 bits or fewer without host bits: %w", p.Pool6, sandbox.ErrInvalid)
	}
	return nil
}

// Gateway4 and Gateway6 are the router's addresses, the same for every sandbox: default route, resolver, and where
// connections of the node's port proxy come from.
func (p Plan) Gateway4() netip.Addr { return p.at4(1) }

// Gateway6 is Gateway4 for IPv6.
func (p Plan) Gateway6() netip.Addr { return p.at6(1) }

// Address4 is a sandbox's address.
func (p Plan) Address4(slot int) netip.Addr { return p.at4(first + slot) }

// Address6 is a sandbox's address.
func (p Plan) Address6(slot int) netip.Addr { return p.at6(first + slot) }

// SlotOf is the slot that an address belongs to.
func (p Plan) SlotOf(a netip.Addr) (slot int, ok bool) {
	a = a.Unmap()
	pool := p.Pool6
	if a.Is4() {
		pool = p.Pool4
	}
	if !pool.Contains(a) {
		return 0, false
	}
	b := a.AsSlice()
	slot = int(binary.BigEndian.Uint16(b[len(b)-2:]))
	if a.Is4() {
		slot &= 1<<(32-17) - 1
		if base := pool.Addr().As4(); binary.BigEndian.Uint32(b)-binary.BigEndian.Uint32(base[:]) >= first+Slots {
			return 0, false
		}
	} else if p.at6(slot) != a {
		return 0, false
	}
	slot -= first
	return slot, slot >= 0 && slot < Slots
}

// MAC is the hardware address of the sandbox's end.
func (p Plan) MAC(slot int) [6]byte {
	return [6]byte{0x02, 0xd5, 0xec, 0x00, byte(slot >> 8), byte(slot)}
}

// GatewayMAC is that of every host end.
func (p Plan) GatewayMAC() [6]byte { return [6]byte{0x02, 0xd5, 0xec, 0xff, 0xff, 0x01} }

func (p Plan) at4(n int) netip.Addr {
	b := p.Pool4.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func (p Plan) at6(n int) netip.Addr {
	b := p.Pool6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], binary.BigEndian.Uint32(b[12:])+uint32(n))
	return netip.AddrFrom16(b)
}
