package fullvm

import (
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// UseNetwork gives the driver a network, before its first machine.
func (d *Driver) UseNetwork(n *node.Network) { d.cfg.Network = n }

// SnapshotDir is where a snapshot lies.
func (d *Driver) SnapshotDir(id sandbox.SnapshotID) string { return d.snapshotDir(id) }

// ForgetVerified makes the next use of a snapshot compare its files with their digests again.
func (d *Driver) ForgetVerified(id sandbox.SnapshotID) { d.verified.Delete(id) }

// UseSaved bounds what is saved.
func (d *Driver) UseSaved(s *saved.Space) { d.cfg.Saved = s }

// MostSaved is what a snapshot of an empty disk takes at most, for a sandbox's memory, bytes.
func MostSaved(memory int64) int64 { return maxState(memory) }
