package fullvm

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// Config of the driver.
type Config struct {
	StateDir string         // the edge's; run/fullvm lies in it
	Edge     sandbox.EdgeID // encoded in the ids of its sandboxes
	Layers   layer.Node
	Log      *slog.Logger
	// Network is the node's, which somebody else closes; nil: machines have none.
	Network *node.Network

	QEMU string // the program; "" = qemu-system-x86_64, from PATH
	// OVMF is the directory of the UEFI firmware; "" = /usr/share/OVMF.
	OVMF string
	// NoKVM emulates where the processor could be used.
	NoKVM bool
	Max   int // machines at once; 0 = 64
	// BootTimeout bounds the time from QEMU's start until the firmware has found something to start; 0 = 60 s.
	BootTimeout time.Duration
	// Saved bounds what is saved of machines, in SavedPlaces; nil: the disk's end does.
	Saved *saved.Space
}

// snapshotsDir is the name of the directory of snapshots in a state directory.
const snapshotsDir = "fullvm-snapshots"

// SavedPlaces are where in a state directory lies what is saved of machines.
func SavedPlaces(stateDir string) []saved.Place {
	return []saved.Place{{Root: filepath.Join(stateDir, snapshotsDir)}}
}

func (c *Config) defaults() {
	if c.QEMU == "" {
		c.QEMU = "qemu-system-x86_64"
	}
	if c.OVMF == "" {
		c.OVMF = "/usr/share/OVMF"
	}
	if c.Max == 0 {
		c.Max = 64
	}
	if c.BootTimeout == 0 {
		c.BootTimeout = time.Minute
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}
