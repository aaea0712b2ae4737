package datapath

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

func checkLearned(a netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" {
		return fmt.Errorf("address %s: %w", a, sandbox.ErrInvalid)
	}
	if network.IsPrivate(a) {
		return fmt.Errorf("a name opens no private address (%s): %w", a, sandbox.ErrPermission)
	}
	return nil
}

func (e *engine) Learn(slot int, generation uint64, addr netip.Addr, openings []network.Opening, until time.Time) error {
	addr = addr.Unmap()
	if err := checkLearned(addr); err != nil {
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	if e.isForbidden(addr) {
		return fmt.Errorf("learn for slot %d: %s is never allowed: %w", slot, addr, sandbox.ErrPermission)
	}
	l, err := makeList(openings)
	if err != nil {
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	left := time.Until(until)
	if len(l) == 0 || left <= 0 {
		return nil
	}
	s, err := e.attached(slot)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	token, err := e.tokenOf(s, generation)
	if err != nil {
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	which := 0
	if token != s.rec.Token[0] {
		which = 1
	}
	number, err := e.store.acquireList(l)
	if err != nil {
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	now := uint64(linux.Monotonic())
	end := now + uint64(left)
	key := wireLearnedKey{Token: token, Addr: addrOf(addr)}
	var w wireLearned
	err = e.k.Learned.Lookup(&key, &w)
	if err != nil && !isNoKey(err) {
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	fresh := err != nil
	if fresh && s.learned[which] >= LearnedAddresses {
		return fmt.Errorf("learn for slot %d: it knows %d addresses already, wait until some expire: %w", slot, s.learned[which], sandbox.ErrExhausted)
	}
	if !w.put(number, end, now) {
		return fmt.Errorf("learn for slot %d: too many names have %s: %w", slot, addr, sandbox.ErrExhausted)
	}
	if err := e.k.Learned.Put(&key, &w); err != nil {
		return fmt.Errorf("learn for slot %d: %w", slot, full(err))
	}
	if fresh {
		s.learned[which]++
	}
	return nil
}

// put notes a list until then, in its place, in a free one, or in that of one that has expired.
func (w *wireLearned) put(number uint32, end, now uint64) bool {
	place := -1
	for i, n := range w.List {
		if n == number {
			w.Until[i] = max(w.Until[i], end)
			return true
		}
		if w.Until[i] <= now {
			place = i
		}
	}
	if place < 0 {
		return false
	}
	w.List[place], w.Until[place] = number, end
	return true
}

// tokenOf is the token of a generation that holds, or will.
func (e *engine) tokenOf(s *slotState, generation uint64) (uint32, error) {
	switch {
	case generation != 0 && generation == s.rec.Generation[0]:
		return s.rec.Token[0], nil
	case generation < s.rec.Generation[0] || generation == 0:
		return 0, fmt.Errorf("generation %d is in force, %d is older: %w", s.rec.Generation[0], generation, sandbox.ErrConflict)
	case generation != s.rec.Generation[1]:
		// It need not be recorded: what is learned for a policy that is not set yet is lost with this process.
		s.rec.Generation[1], s.rec.Token[1] = generation, e.token.Add(1)
		s.learned[1] = 0
	}
	return s.rec.Token[1], nil
}
