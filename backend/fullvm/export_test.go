package fullvm

import (
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// UseNetwork gives the driver a network, before its first machine.
func (d *Driver) UseNetwork(n *node.Network) { d.cfg.Network = n }

// SnapshotDir is where a snapshot lies.
func (d *Driver) SnapshotDir(id sandbox.SnapshotID) string { return d.snapshotDir(id) }

// ForgetVerified makes the next use of a snapshot compare its files with their digests again.
func (d *Driver) ForgetVerified(id sandbox.SnapshotID) { d.verified.Delete(id) }
