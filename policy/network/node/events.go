package node

import (
	"net/netip"
	"time"

	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// Event is something that happened to a sandbox's traffic, whoever saw it.
type Event struct {
	Time time.Time
	Key  string // the sandbox
	Kind string // denied_name, denied, limited, failed, cut, ended
	// Name that was asked for or connected to, Remote where to; either may be missing.
	Name     string
	Remote   netip.AddrPort
	Protocol string
	Rule     string // that decided, and whose it is
	Source   string
	Why      string
	// Sent and Received are bytes, of ended connections.
	Sent, Received uint64
	Suppressed     int // like events left out since the last one
}

// named takes the resolver's events.
func (n *Network) named(e dns.Event) {
	kind := map[dns.EventKind]string{dns.Denied: "denied_name", dns.Dropped: "denied", dns.Limited: "limited", dns.Failed: "failed"}[e.Kind]
	n.tell(Event{Time: e.Time, Key: e.Key, Kind: kind, Name: e.Name, Protocol: "dns", Rule: e.Rule, Source: string(e.Source), Why: e.Why, Suppressed: e.Suppressed})
}

// proxied takes the proxy's.
func (n *Network) proxied(e proxy.Event) {
	kind := map[proxy.EventKind]string{proxy.Refused: "denied", proxy.Limited: "limited", proxy.Failed: "failed", proxy.Cut: "cut", proxy.Ended: "ended"}[e.Kind]
	n.tell(Event{Time: e.Time, Key: e.Key, Kind: kind, Name: e.Name, Remote: e.Destination, Protocol: e.Protocol, Rule: e.Rule,
		Source: string(e.Source), Why: e.Why, Sent: e.Sent, Received: e.Received, Suppressed: e.Suppressed})
}

// follow takes the datapath's until it is closed.
func (n *Network) follow() {
	for e := range n.dp.Events() {
		n.mu.RLock()
		p := n.slots[e.Slot]
		n.mu.RUnlock()
		if p == nil || e.Kind == datapath.Opened {
			continue
		}
		out := Event{Time: e.Time, Key: p.key, Kind: "denied", Remote: e.Remote, Protocol: e.Protocol.String(), Why: e.Reason.String()}
		if e.Kind == datapath.Ended {
			if e.Flow == nil || e.Flow.Proxied {
				continue // the proxy tells of those, with their names
			}
			out.Kind, out.Why, out.Sent, out.Received = "ended", "", e.Flow.BytesOut, e.Flow.BytesIn
		}
		n.tell(out)
	}
}

func (n *Network) tell(e Event) {
	if n.events != nil {
		n.events(e)
	}
}
