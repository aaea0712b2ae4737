package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Action is what a rule does with what it names.
type Action uint8

// The actions. The zero value is Deny: what nobody thought of stays closed.
const (
	Deny Action = iota
	Allow
)

func (a Action) String() string {
	if a == Allow {
		return "allow"
	}
	return "deny"
}

// Protocol of a rule or destination.
type Protocol uint8

// The protocols. Any is all of the others; no other protocol of IP (GRE, SCTP, IP in IP) ever leaves a sandbox.
const (
	Any Protocol = iota
	TCP
	UDP
	ICMP
)

var protocolNames = [...]string{Any: "any", TCP: "tcp", UDP: "udp", ICMP: "icmp"}

func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return "protocol " + strconv.Itoa(int(p))
}

// ParseProtocol reads "tcp", "udp", "icmp" or "any", in any case.
func ParseProtocol(s string) (Protocol, bool) {
	i := slices.Index(protocolNames[:], strings.ToLower(s))
	return Protocol(max(i, 0)), i >= 0
}

// PortRange is from a first port to a last, both included.
type PortRange struct{ From, To uint16 }

func (r PortRange) String() string {
	switch {
	case r == allPorts:
		return "*"
	case r.From == r.To:
		return strconv.Itoa(int(r.From))
	}
	return fmt.Sprintf("%d-%d", r.From, r.To)
}

var allPorts = PortRange{1, 65535}

// Rule allows or denies one target.
type Rule struct {
	Action Action
	// Exactly one of these three is set. Service is a name in the catalogue. Domain is exact ("pypi.org") or a
	// wildcard ("*.pypi.org": every name below it at any depth, and not pypi.org itself), normalised by
	// NormalizeDomain. Prefix is masked; a single address is a prefix of its full length.
	Service string
	Domain  string
	Prefix  netip.Prefix
	// Ports are sorted and apart from each other. Without any, an allow rule for a service opens the service's
	// ports, for a domain TCP 80 and 443, and for a prefix all; a deny rule closes all.
	Ports    []PortRange
	Protocol Protocol
}

// Target is what the rule names, without action, ports and protocol.
func (r Rule) Target() string {
	switch {
	case r.Service != "":
		return r.Service
	case r.Domain != "":
		return r.Domain
	case r.Prefix.IsSingleIP():
		return r.Prefix.Addr().String()
	}
	return r.Prefix.String()
}

// String is the rule as Parse reads it: "pypi", "!*.example.org:443", "[2001:db8::1]:53/udp".
func (r Rule) String() string {
	s := r.Target()
	if len(r.Ports) > 0 {
		if r.Prefix.IsValid() && r.Prefix.Addr().Is6() {
			s = "[" + s + "]"
		}
		texts := make([]string, len(r.Ports))
		for i, p := range r.Ports {
			texts[i] = p.String()
		}
		s += ":" + strings.Join(texts, ",")
	}
	if r.Protocol != Any {
		s += "/" + r.Protocol.String()
	}
	if r.Action == Deny {
		s = "!" + s
	}
	return s
}

// Mode is how a policy treats what its rules do not name.
type Mode uint8

// The modes.
const (
	// ModeNone denies everything; such a policy has no rules.
	ModeNone Mode = iota
	// ModeRules denies what no rule allows.
	ModeRules
	// ModeOpen allows the internet: every public address and every name, but for what rules deny and for other
	// resolvers (ports 53 and 853). It never allows private addresses; rules may add those.
	ModeOpen
)

func (m Mode) String() string {
	switch m {
	case ModeRules:
		return "rules"
	case ModeOpen:
		return "open"
	}
	return "none"
}

// Limits bound what a sandbox uses of the network; zero is no limit.
type Limits struct {
	// Bandwidth is in bytes per second, for each direction.
	Bandwidth uint64
	// Connections counts flows that are open at once.
	Connections uint32
}

// Least are the lesser of two parties' limits.
func (l Limits) Least(m Limits) Limits {
	return Limits{Bandwidth: least(l.Bandwidth, m.Bandwidth), Connections: least(l.Connections, m.Connections)}
}

// Policy is what one party (the spec, the environment, a project) says about a sandbox's network.
// The zero value denies everything.
type Policy struct {
	Mode   Mode
	Rules  []Rule
	Limits Limits
}

// Texts are the wishes that ParsePolicy makes the policy of; Limits are apart.
func (p Policy) Texts() []string {
	var out []string
	if p.Mode != ModeRules {
		out = append(out, p.Mode.String())
	}
	for _, r := range p.Rules {
		out = append(out, r.String())
	}
	return out
}
