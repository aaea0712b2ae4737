package main

import (
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// TestEnvironmentText: everything that a sandbox may be made of is shown, a snapshot too.
func TestEnvironmentText(t *testing.T) {
	for want, e := range map[string]*dsecv1.Environment{
		"-":           nil,
		"nabc":        {Snapshot: "nabc"},
		"debian+w+t":  {Base: "debian", Workspace: "w", Toolkits: []string{"t"}},
		"e+2 layers":  {Name: "e", Layers: []string{"b3:1", "b3:2"}},
		"debian:12+t": {Image: "debian:12", Toolkits: []string{"t"}},
	} {
		if got := environmentText(e); got != want {
			t.Errorf("%v: %q, want %q", e, got, want)
		}
	}
}
