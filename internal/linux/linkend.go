package linux

import "net/netip"

// LinkEnd is what the interface of a sandbox is to be: a plain value.
type LinkEnd struct {
	MAC        [6]byte
	Address4   netip.Addr
	Address6   netip.Addr
	Gateway4   netip.Addr
	Gateway6   netip.Addr
	GatewayMAC [6]byte
	MTU        int
}

// Requests bring the interface up, with its addresses, its routes and the gateway as a neighbour, in the namespace that
// it lies in. MAC and MTU it has already.
func (e *LinkEnd) Requests(index int) []Request {
	return []Request{
		QuietLink(index),
		UpLink(index),
		SettleLink(index),
		AddAddress(index, netip.PrefixFrom(e.Address4, 32)),
		AddAddress(index, netip.PrefixFrom(e.Address6, 128)),
		TakeAddress(index, e.Address6),
		AddNeighbour(index, e.Gateway4, e.GatewayMAC),
		AddNeighbour(index, e.Gateway6, e.GatewayMAC),
		AddRoute(RouteTo{To: netip.MustParsePrefix("0.0.0.0/0"), Index: index, Via: e.Gateway4}),
		AddRoute(RouteTo{To: netip.MustParsePrefix("::/0"), Index: index, Via: e.Gateway6}),
	}
}
