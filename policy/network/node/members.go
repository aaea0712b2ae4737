package node

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/opendsec/dsec/policy/network/datapath"
)

// job is a private network: its members by name.
type job struct{ named map[string][]*place }

// maxAnswers is how many members of one name are told at once.
const maxAnswers = 16

// Join makes the sandbox called key, which has the slot, a member of a private network, before its Set. The others know
// it by name; "" is its key. It is a member until Detach.
func (n *Network) Join(slot int, key, network, name string) error {
	if name == "" {
		name = key
	}
	n.mu.Lock()
	p, err := n.placeOf(slot, key)
	if err == nil && (p.job != network || p.name != name) {
		n.leave(p)
		p.job, p.name = network, name
		j := n.jobs[network]
		if j == nil {
			j = &job{named: map[string][]*place{}}
			n.jobs[network] = j
		}
		j.named[name] = append(j.named[name], p)
	}
	n.mu.Unlock()
	if err != nil {
		return err
	}
	return n.dp.Join(slot, datapath.NewGroup(network))
}

// leave takes a place out of its private network. n.mu is held.
func (n *Network) leave(p *place) {
	j := n.jobs[p.job]
	if j == nil {
		return
	}
	j.named[p.name] = slices.DeleteFunc(j.named[p.name], func(q *place) bool { return q == p })
	if len(j.named[p.name]) == 0 {
		delete(j.named, p.name)
	}
	if len(j.named) == 0 {
		delete(n.jobs, p.job)
	}
	p.job, p.name = "", ""
}

// members answers a sandbox's question for a name of its private network: their addresses, in no order.
func (n *Network) members(key, name string) ([]netip.Addr, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	p := n.keys[key]
	if p == nil || p.job == "" {
		return nil, false
	}
	found := n.jobs[p.job].named[name]
	if len(found) == 0 {
		return nil, false
	}
	var out []netip.Addr
	start := rand.IntN(len(found))
	for i := range min(len(found), maxAnswers) {
		slot := found[(start+i)%len(found)].slot
		out = append(out, n.cfg.Plan.Address4(slot), n.cfg.Plan.Address6(slot))
	}
	return out, true
}
