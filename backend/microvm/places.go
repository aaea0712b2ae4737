package microvm

import (
	"fmt"
	"sync"

	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// places hands out slots of the node's network: those that are machines'.
type places struct {
	mu   sync.Mutex
	used map[int]bool
	next int
}

func newPlaces() *places { return &places{used: map[int]bool{}, next: link.MicroVMs.From} }

// take returns a free slot; it goes round, so that an address is used again as late as possible. Error:
// sandbox.ErrExhausted.
func (p *places) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := link.MicroVMs
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
	return 0, fmt.Errorf("%w: all %d places of machines in the node's network are in use", sandbox.ErrExhausted, r.To-r.From)
}

// claim marks the slot of a machine that an earlier process made.
func (p *places) claim(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[slot] = true
}

func (p *places) release(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, slot)
}
