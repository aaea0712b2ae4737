package datapath

import (
	"fmt"
	"strings"
)

// firstGroup is below the marks of groups, and above those that mean something else.
const firstGroup = 0x40000000

// Join implements Datapath. Flows between members are not counted as a slot's.
func (f *filter) Join(slot int, group Group) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return err
	}
	var b strings.Builder
	next := *s
	if s.Group != group {
		f.leave(&b, slot, s)
		next.Group, next.Number = group, f.numberOf(group)
	}
	// The file first: what is in the kernel and not in the file would stay there for the slot's next sandbox.
	if err := f.save(slot, &next); err != nil {
		return fmt.Errorf("private network of slot %d: %w", slot, err)
	}
	if group != (Group{}) {
		f.members(&b, "add", slot, &next)
	}
	if _, err := f.run(b.String()); err != nil {
		return fmt.Errorf("private network of slot %d: %w", slot, err)
	}
	*s = next
	return nil
}

// numberOf is what the rules know a group by: that of a slot that has it, else one that is free.
func (f *filter) numberOf(group Group) uint32 {
	if group == (Group{}) {
		return 0
	}
	used := map[uint32]bool{}
	for _, s := range f.slots {
		if s.Group == group {
			return s.Number
		}
		used[s.Number] = true
	}
	n := uint32(firstGroup + 1)
	for used[n] {
		n++
	}
	return n
}

// leave takes a slot out of its group. What is not there any more is added first: a transaction that removes something
// else would not be carried out.
func (f *filter) leave(b *strings.Builder, slot int, s *filterSlot) {
	if s.Group != (Group{}) {
		f.members(b, "add", slot, s)
		f.members(b, "delete", slot, s)
	}
}

func (f *filter) members(b *strings.Builder, verb string, slot int, s *filterSlot) {
	p := f.cfg.Router.Plan()
	for _, v := range []struct{ family, address string }{{"4", p.Address4(slot).String()}, {"6", p.Address6(slot).String()}} {
		fmt.Fprintf(b, "%[1]s element inet datapath group%[2]s { %[3]s : %#[4]x }\n%[1]s element inet datapath members%[2]s { %[3]s . %#[4]x }\n",
			verb, v.family, v.address, s.Number)
	}
}
