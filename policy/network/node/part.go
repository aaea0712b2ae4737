package node

import (
	"cmp"
	"slices"
	"time"

	"github.com/opendsec/dsec/policy/network/datapath"
)

// lastTold is how many of a sandbox's connections are told of at its end, those with the most bytes.
const lastTold = 16

// Part tells of the connections that a sandbox has at its end, whose processes are gone, and takes it out of its private
// network. Detach follows, some time later. What cannot be told is left out.
func (n *Network) Part(slot int) {
	n.mu.Lock()
	p := n.slots[slot]
	if p == nil {
		n.mu.Unlock()
		return
	}
	key := p.key
	n.leave(p)
	n.mu.Unlock()
	n.check.Part(key) // which tells of those that it has
	if err := n.dp.Join(slot, datapath.Group{}); err != nil {
		n.log.Warn("take a sandbox out of its private network", "sandbox", key, "err", err)
	}
	flows, err := n.dp.Flows(slot)
	if err != nil {
		n.log.Warn("the last connections of a sandbox are not told of", "sandbox", key, "err", err)
		return
	}
	// What the node itself opened is no destination.
	flows = slices.DeleteFunc(flows, func(f datapath.Flow) bool { return f.Proxied || f.Inbound })
	slices.SortFunc(flows, func(a, b datapath.Flow) int { return cmp.Compare(b.BytesOut+b.BytesIn, a.BytesOut+a.BytesIn) })
	now := time.Now()
	for i, f := range flows[:min(len(flows), lastTold)] {
		e := Event{Time: now, Key: key, Kind: "ended", Remote: f.Remote, Protocol: f.Protocol.String(), Sent: f.BytesOut, Received: f.BytesIn}
		if i == lastTold-1 {
			e.Suppressed = len(flows) - lastTold
		}
		n.tell(e)
	}
}
