package feature

import (
	"os"
	"testing"
)

// TestNetworkFeatures wants all but the fallback's: the project's tests need them.
func TestNetworkFeatures(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, f := range Network() {
		if _, err := f.Probe(); err != nil && f.Level != Later {
			t.Errorf("%s: %v", f.Name, err)
		}
		if f.Lost == "" {
			t.Errorf("%s: nothing is lost without it", f.Name)
		}
	}
}

// TestNetworkIsShown: what networks need is in the list that people see, under names of its own.
func TestNetworkIsShown(t *testing.T) {
	seen := map[string]int{}
	for _, f := range All() {
		seen[f.Name]++
	}
	for _, f := range Network() {
		if seen[f.Name] != 1 {
			t.Errorf("%s: shown %d times", f.Name, seen[f.Name])
		}
	}
}
