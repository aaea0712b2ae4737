package linked

import (
	"errors"
	"testing"

	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// TestPlaces: each slot has one machine, and is used again as late as possible.
func TestPlaces(t *testing.T) {
	p := NewPlaces(link.MicroVMs)
	first := link.MicroVMs.From
	p.Claim(first + 1) // an earlier process's
	for _, want := range []int{first, first + 2} {
		if got, err := p.Take(); err != nil || got != want {
			t.Fatalf("slot %d, %v; want %d", got, err, want)
		}
	}
	p.Release(first)
	seen := map[int]bool{}
	for range link.MicroVMs.To - link.MicroVMs.From - 2 {
		got, err := p.Take()
		if err != nil || seen[got] || !link.MicroVMs.Has(got) {
			t.Fatalf("slot %d, %v; had it: %v", got, err, seen[got])
		}
		seen[got] = true
	}
	if !seen[first] || seen[first+1] {
		t.Errorf("the slot that was given back: %v, the one that was not: %v", seen[first], seen[first+1])
	}
	if _, err := p.Take(); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("one too many: %v", err)
	}
	lost := errors.New("not noted")
	if err := p.TakeAway(nil, first, func() error { return lost }); !errors.Is(err, lost) || !p.Used(first) {
		t.Errorf("a slot that its machine still has by its record: %v, used: %v", err, p.Used(first))
	}
	if err := p.TakeAway(nil, first, func() error { return nil }); err != nil || p.Used(first) {
		t.Errorf("a slot that was taken away: %v, used: %v", err, p.Used(first))
	}
}
