package microvm

import (
	"errors"
	"testing"

	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// TestPlaces: each slot has one machine, and is used again as late as possible.
func TestPlaces(t *testing.T) {
	p := newPlaces()
	first := link.MicroVMs.From
	p.claim(first + 1) // an earlier process's
	for _, want := range []int{first, first + 2} {
		if got, err := p.take(); err != nil || got != want {
			t.Fatalf("slot %d, %v; want %d", got, err, want)
		}
	}
	p.release(first)
	seen := map[int]bool{}
	for range link.MicroVMs.To - link.MicroVMs.From - 2 {
		got, err := p.take()
		if err != nil || seen[got] || !link.MicroVMs.Has(got) {
			t.Fatalf("slot %d, %v; had it: %v", got, err, seen[got])
		}
		seen[got] = true
	}
	if !seen[first] || seen[first+1] {
		t.Errorf("the slot that was given back: %v, the one that was not: %v", seen[first], seen[first+1])
	}
	if _, err := p.take(); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("one too many: %v", err)
	}
}
