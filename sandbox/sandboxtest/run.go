package sandboxtest

import (
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// Run runs the suite against one driver.
func Run(t *testing.T, f Factory) {
	n := Start(t, f, nil)
	s := &suite{Node: n, caps: n.Backend.Capabilities()}
	for _, group := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Commands", s.commands},
		{"Results", s.results},
		{"Background", s.background},
		{"Sessions", s.sessions},
		{"Terminals", s.terminals},
		{"Files", s.files},
		{"Traps", s.traps},
		{"Archives", s.archives},
		{"Ports", s.ports},
		{"Pause", s.pause},
		{"PutAway", s.putAway},
		{"Lifetime", s.lifetime},
		{"OnTimeout", s.onTimeout},
		{"Events", s.events},
		{"Creation", s.creation},
		{"BadInput", s.badInput},
		{"Network", s.network},
		{"Snapshots", s.snapshots},
		{"Forks", s.forks},
		{"SnapshotRestart", s.snapshotRestart},
		{"Restart", s.restart}, // last: it restarts the node
	} {
		t.Run(group.name, group.run)
	}
}

type suite struct {
	*Node
	caps sandbox.Capabilities
}

// real skips what only real programs can show.
func (s *suite) real(t *testing.T) {
	if !s.caps.Real {
		t.Skip("the driver runs no real programs")
	}
}

// RunNetwork runs the part of the suite that is about networks, for a driver that has several kinds of them.
func RunNetwork(t *testing.T, f Factory) {
	n := Start(t, f, nil)
	(&suite{Node: n, caps: n.Backend.Capabilities()}).network(t)
}
