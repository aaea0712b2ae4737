package linked

import (
	"fmt"
	"sync"

	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// Places hands out the slots of the node's network that are one backend's.
type Places struct {
	of   link.Range
	mu   sync.Mutex
	used map[int]bool
	next int
}

// NewPlaces hands out the slots of a range.
func NewPlaces(of link.Range) *Places { return &Places{of: of, used: map[int]bool{}, next: of.From} }

// Take returns a free slot; it goes round, so that an address is used again as late as possible. Error:
// sandbox.ErrExhausted.
func (p *Places) Take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.of
	for range r.To - r.From {
		n := p.next
		if p.next++; p.next == r.To {
			p.next = r.From
		}
		if !p.used[n] {
			p.used[n] = true
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: all %d places of machines of this kind in the node's network are in use", sandbox.ErrExhausted, r.To-r.From)
}

// Claim marks the slot of a machine that an earlier process made.
func (p *Places) Claim(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[slot] = true
}

// Used tells whether a slot is taken or claimed. Links of others are nobody's, once all that run have been claimed.
func (p *Places) Used(slot int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[slot]
}

// TakeAway takes a machine's slot out of the network, once its link has ended, and gives it back. n may be nil. forget notes that the
// machine has it no more, before another gets it: whoever comes again must not take it from that one.
func (p *Places) TakeAway(n *node.Network, slot int, forget func() error) error {
	if n != nil {
		n.Part(slot)
		if err := n.Detach(slot); err != nil {
			return err
		}
	}
	if err := forget(); err != nil {
		return err
	}
	p.Release(slot)
	return nil
}

// Release gives a slot back.
func (p *Places) Release(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, slot)
}
