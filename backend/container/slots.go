package container

import (
	"fmt"
	"sync"

	"github.com/opendsec/dsec/backend/container/spawn"
	"github.com/opendsec/dsec/sandbox"
)

// firstID is the first host id given to sandboxes: above what distributions hand out in /etc/subuid (which
// begins at 100,000 and rarely goes beyond a few hundred million).
const firstID = 1_000_000_000

// slots hands out id ranges: each live shell has one of its own, so that no two sandboxes share a host id.
type slots struct {
	mu   sync.Mutex
	used []bool
	next int
}

func newSlots(n int) *slots { return &slots{used: make([]bool, n)} }

// take returns a free slot; it goes round, so that a range is reused as late as possible.
func (s *slots) take() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.used {
		n := (s.next + i) % len(s.used)
		if !s.used[n] {
			s.used[n] = true
			s.next = n + 1
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: all %d sandboxes of this node are in use", sandbox.ErrExhausted, len(s.used))
}

// claim marks the slot of a sandbox that an earlier process made.
func (s *slots) claim(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n >= len(s.used) { // the limit was lowered meanwhile
		s.used = append(s.used, false)
	}
	if n < 0 || s.used[n] {
		return fmt.Errorf("%w: id range %d is in use twice", sandbox.ErrConflict, n)
	}
	s.used[n] = true
	return nil
}

func (s *slots) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[n] = false
}

// full tells whether no slot is left.
func (s *slots) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.used {
		if !u {
			return false
		}
	}
	return true
}

// base is the first host id of a slot.
func base(slot int) uint32 { return uint32(firstID + slot*spawn.IDRange) }
