package datapath

import (
	"net/netip"
	"structs"

	"github.com/opendsec/dsec/policy/network"
)

// The layouts of bpf/maps.h.

const (
	ports      = 32768 // interface indexes
	maxRules   = 64
	maxLearned = 8
)

type wireAddr [16]byte

func addrOf(a netip.Addr) wireAddr { return a.As16() }

func (a wireAddr) addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

type wirePrefix struct {
	_    structs.HostLayout
	Len  uint32
	Addr wireAddr
}

// prefixOf maps IPv4 into IPv6.
func prefixOf(p netip.Prefix) wirePrefix {
	p = p.Masked()
	n := p.Bits()
	if p.Addr().Is4() {
		n += 96
	}
	return wirePrefix{Len: uint32(n), Addr: addrOf(p.Addr())}
}

func (p wirePrefix) prefix() netip.Prefix {
	a, n := p.Addr.addr(), int(p.Len)
	if a.Is4() && n >= 96 {
		return netip.PrefixFrom(a, n-96)
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Addr), n)
}

// mask has the prefix's bits.
func (p wirePrefix) mask() (m wireAddr) {
	for i := range int(p.Len) {
		m[i/8] |= 1 << (7 - i%8)
	}
	return m
}

type wireRule struct {
	_                 structs.HostLayout
	From, To          uint16
	Protocol, Verdict uint8
	_                 uint16
}

type wireRules struct {
	_     structs.HostLayout
	Count uint32
	Rule  [maxRules]wireRule
}

type wireLearnedKey struct {
	_     structs.HostLayout
	Token uint32
	Addr  wireAddr
}

type wireLearned struct {
	_     structs.HostLayout
	Until [maxLearned]uint64
	List  [maxLearned]uint32
}

type wireFlowKey struct {
	_                     structs.HostLayout
	Lease                 uint32
	LocalPort, RemotePort uint16
	Remote                wireAddr
	Protocol              uint8
	_                     [3]uint8
}

const (
	flowInbound = 1
	flowClosed  = 8
)

type wireFlow struct {
	_                                        structs.HostLayout
	First, Last                              uint64
	OutBytes, OutPackets, InBytes, InPackets uint64
	Token                                    uint32
	Verdict, Flags, Protocol, _              uint8
}

type wireSlot struct {
	_               structs.HostLayout
	OutCost, InCost uint64
	Burst           uint64
	Addr4, Addr6    wireAddr
	MaxFlows        uint32
	Lease           uint32
	MAC             [6]uint8
	_               uint16
	Group           [2]uint64
}

// Words of a state.
const (
	stateOutBytes = iota
	stateOutPackets
	stateInBytes
	stateInPackets
	_
	_
	_
	_
	stateSwept
	stateEventsLost
	stateDenied
	stateLive  = stateDenied + reasons
	stateWords = stateLive + 1
)

type wireRecord struct {
	_          structs.HostLayout
	Generation [2]uint64
	Token      [2]uint32
	Space      uint64
	Port       uint32
	Lease      uint32
}

type wireEvent struct {
	Time                            uint64
	Slot, Token                     uint32
	Remote                          wireAddr
	LocalPort, RemotePort           uint16
	Protocol, Kind, Reason, Inbound uint8
}

type wireConfig struct {
	_                          structs.HostLayout
	Gateway4, Gateway6         wireAddr
	Pool4, Mask4, Pool6, Mask6 wireAddr
	ProxyMark, AnswerMark      uint32
	PassMark                   uint32
	ProxyPort, DNSPort         uint16
	GatewayMAC                 [6]uint8
	MTU                        uint16
	_                          [8]uint8
}

var protocolNumber = map[network.Protocol]uint8{network.Any: 0, network.ICMP: 1, network.TCP: 6, network.UDP: 17}

func protocolOf(n uint8) network.Protocol {
	switch n {
	case 1, 58:
		return network.ICMP
	case 6:
		return network.TCP
	case 17:
		return network.UDP
	}
	return network.Any
}
