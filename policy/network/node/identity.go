package node

import (
	"context"
	"errors"
	"net/netip"

	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/sandbox"
)

// at finds the bound slot that an address belongs to, as it is now.
func (n *Network) at(a netip.Addr) (place, bool) {
	slot, ok := n.cfg.Plan.SlotOf(a)
	if !ok {
		return place{}, false
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if p := n.slots[slot]; p != nil {
		return *p, true
	}
	return place{}, false
}

// identify tells the resolver who asks.
func (n *Network) identify(a netip.Addr) (dns.Client, bool) {
	p, ok := n.at(a)
	if !ok || p.program == nil {
		return dns.Client{}, false
	}
	return dns.Client{Key: p.key, Program: p.program, Generation: p.generation}, true
}

// opener opens in the datapath what the resolver is about to answer.
type opener struct{ n *Network }

func (o opener) Open(_ context.Context, g dns.Grant) error {
	o.n.mu.RLock()
	p := o.n.keys[g.Key]
	o.n.mu.RUnlock()
	if p == nil {
		return dns.ErrStale
	}
	for _, a := range g.Addresses {
		err := o.n.dp.Learn(p.slot, g.Generation, a.Addr, a.Openings, g.Until)
		if errors.Is(err, sandbox.ErrConflict) {
			return dns.ErrStale
		}
		if err != nil {
			return err
		}
	}
	return nil
}
