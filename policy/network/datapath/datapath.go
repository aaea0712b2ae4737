package datapath

import (
	"crypto/sha256"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
)

// Datapath enforces policies on the links of a node. All methods may be called by many at once; calls about one slot
// must not overlap, but for those that only read. A slot outside of 0 to link.Slots-1 is sandbox.ErrInvalid, one
// that is not attached sandbox.ErrNotFound.
type Datapath interface {
	// Attach puts a slot under enforcement: everything is denied until Set. Call it before the link is used; a slot that is
	// attached is sandbox.ErrAlreadyExists.
	Attach(slot int, a Attachment) error
	// Set replaces a slot's policy by entries in the form of network.Program.Static, atomically: packets are judged by the
	// old policy or by the new one, and flows that the new one does not allow are cut. The generation grows; one that is
	// lower than the present is sandbox.ErrConflict, and nothing changes.
	Set(slot int, generation uint64, entries []network.Entry) error
	// Learn opens an address that a name was answered with, until then. The generation is the present one, or a later one:
	// what is learned for it ahead of its Set holds from the Set on. Addresses that are never allowed are refused
	// (sandbox.ErrPermission); more than LearnedAddresses of one slot are sandbox.ErrExhausted.
	Learn(slot int, generation uint64, addr netip.Addr, openings []network.Opening, until time.Time) error
	// Limit bounds bandwidth and open flows from now on; zero is no limit of bandwidth, and DefaultFlows.
	Limit(slot int, l network.Limits) error
	// Join makes a slot a member of a private network, whose members reach each other by TCP and UDP whatever their
	// policies say; the zero Group is none. Flows between those that are no longer members together are cut by the next
	// Set, and by Clear.
	Join(slot int, group Group) error
	// Generation is what Set last applied; 0 before.
	Generation(slot int) (uint64, error)
	// Clear takes a slot out: nothing passes any more, and nothing of it is kept. A slot that is not attached is no error.
	Clear(slot int) error
	// Slots lists the attached slots, those of an earlier process included.
	Slots() []int
	// Flows are the slot's open and lately ended flows, in no order.
	Flows(slot int) ([]Flow, error)
	// Counters are sums since Attach.
	Counters(slot int) (Counters, error)
	// Forbid replaces the prefixes that are denied whatever a policy says, for all slots: the node's own addresses.
	// What is never allowed anywhere (link-local, multicast, other sandboxes, ...) is denied without being named.
	Forbid(prefixes []netip.Prefix) error
	// Events are denials, openings and ends of flows. When nobody reads, events are dropped and counted (Lost).
	// The channel is closed by Close.
	Events() <-chan Event
	// Lost counts events that were dropped, by rate bounds or because nobody read.
	Lost() uint64
	// Kind says what enforces: EBPF or Nftables.
	Kind() string
	// Capabilities are what it does beyond the rest of this interface's promises.
	Capabilities() Capabilities
	// Close ends this process's part; enforcement goes on, and the next Open takes over.
	Close() error
	// Destroy takes everything away. Attached links pass nothing any more.
	Destroy() error
}

// Group names a private network: NewGroup makes one of a text.
type Group [16]byte

// NewGroup names the private network of that name on this node. Nobody finds another name for the same Group.
func NewGroup(name string) (g Group) {
	sum := sha256.Sum256([]byte(name))
	copy(g[:], sum[:])
	return g
}

// DefaultFlows is how many flows a slot may have open at once where its limits say nothing: tables are shared.
const DefaultFlows = 4096

func maxFlows(l network.Limits) uint32 {
	if l.Connections == 0 {
		return DefaultFlows
	}
	return min(l.Connections, 1<<30)
}

// LearnedAddresses is how many addresses one slot may have learned at once.
const LearnedAddresses = 4096

// Attachment is where a sandbox touches the datapath.
type Attachment struct {
	Index int // of the interface in the router: link.Index(slot)
	// Group is the sandbox's cgroup v2 directory, and Space its network namespace: connect and sendto of programs in it
	// fail at once where the policy denies. nil: they learn of it by a refusal from the link.
	Group *os.File
	Space *os.File
}

// The kinds.
const (
	EBPF     = "ebpf"
	Nftables = "nftables"
)

// Config of a datapath.
type Config struct {
	// Kind is EBPF or Nftables; empty: whichever the kernel takes, in that order. For Open.
	Kind   string
	Dir    string // for what outlives this process; made if missing
	Router *link.Router
	// ProxyPort is the TCP port on the gateway's addresses at which the node's proxy takes connections
	// (link.Router.Listen, transparent); 0: what is to be checked is denied.
	ProxyPort uint16
	// Forbidden is what Forbid would be called with.
	Forbidden []netip.Prefix
	Log       *slog.Logger // nil: slog.Default
	// Sweep is how often ended flows are collected; 0: 10 seconds.
	Sweep time.Duration
}

// DNSPort is the port of the gateway that every sandbox may reach: the node's resolver.
const DNSPort = 53

// EventKind says what happened.
type EventKind uint8

// The kinds.
const (
	Denied EventKind = 1
	Opened EventKind = 2
	Ended  EventKind = 3 // with byte counts
)

// Reason says why something was denied.
type Reason uint8

// The reasons.
const (
	NoReason      Reason = iota
	ByPolicy             // no rule allows it, or one denies it
	Forbidden            // never allowed
	WrongSource          // not the sandbox's own address
	Malformed            //
	Fragment             //
	WrongProtocol        // neither TCP, UDP nor an ICMP echo; options, extension headers, VLAN tags
	TooManyFlows         //
	Inbound              // to the sandbox, and not an answer
	OverRate             // counted, no event
	NoProxy              // to be checked, and no proxy is there
	Multicast            // counted, no event
	Neighbour            // ARP or ND for anything but the gateway; counted, no event
	Cut                  // had been allowed by an earlier policy
	reasons       = 16
)

var reasonNames = [...]string{"", "policy", "forbidden", "source", "malformed", "fragment", "protocol", "too_many_flows", "inbound", "rate", "no_proxy", "multicast", "neighbour", "cut"}

func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Flow is one connection, or one exchange of datagrams or echoes, as the sandbox sees it.
type Flow struct {
	Protocol   network.Protocol
	LocalPort  uint16 // ICMP: the echo's id
	Remote     netip.AddrPort
	Inbound    bool // opened by the node's port proxy
	Proxied    bool
	Closed     bool
	Generation uint64 // that it is allowed under; 0 if that is not the present one
	First      time.Time
	Last       time.Time
	// Bytes with Ethernet headers.
	BytesOut, BytesIn     uint64
	PacketsOut, PacketsIn uint64
}

// Event is something that happened to a sandbox's traffic.
type Event struct {
	Time      time.Time
	Slot      int
	Kind      EventKind
	Reason    Reason // of a denial
	Protocol  network.Protocol
	Number    uint8 // the protocol as IP numbers it
	LocalPort uint16
	Remote    netip.AddrPort // port 0 where there is none
	Inbound   bool           // opened from outside
	Flow      *Flow          // of Ended
}

// Counters are sums of a slot.
type Counters struct {
	BytesOut, BytesIn     uint64
	PacketsOut, PacketsIn uint64
	Live                  int // flows
	Denied                map[Reason]uint64
	EventsLost            uint64
}
