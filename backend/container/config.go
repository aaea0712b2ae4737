package container

import (
	"log/slog"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// Config of the driver.
type Config struct {
	StateDir   string         // the edge's; run/, log/ and pool.img lie in it
	Edge       sandbox.EdgeID // encoded in the ids of its sandboxes
	InitBinary string         // dsec-init as built; a copy that sandboxes cannot read is made in StateDir
	Layers     layer.Node
	Hold       *hold.Client // nil: what a restart would share is mounted again
	Log        *slog.Logger

	// Network is the node's, which the driver closes; nil: sandboxes have loopback only.
	Network *node.Network

	// AttachMounts makes the driver work as it has to on kernels below 6.15, where layers must be attached.
	AttachMounts bool

	// FirstGroup is the name of the control group that a sandbox's first command will ask for; shells have it ready.
	FirstGroup string

	Warm    int // shells kept ready; 0 = 16
	WarmNet int // shells with a link kept ready, where there is a network; 0 = half of Warm
	// WarmNetFirst is how many of those are ready until the first sandbox with a network is asked for; 0 = WarmNet.
	WarmNetFirst int
	MaxShells    int   // shells in all, ready and in use; 0 = 4096
	Parallel     int   // shells being made at once; 0 = 2
	PoolBytes    int64 // size of a new writable-layer pool; 0 = a quarter of the free disk
	PoolFree     int64 // bytes of the pool that stay free: below them no sandbox is made; 0 = 512 MiB or a tenth
}

func (c *Config) defaults() {
	if c.Warm == 0 {
		c.Warm = 16
	}
	if c.WarmNet == 0 {
		c.WarmNet = max(1, c.Warm/2)
	}
	if c.WarmNetFirst == 0 {
		c.WarmNetFirst = c.WarmNet
	}
	if c.MaxShells == 0 {
		c.MaxShells = 4096
	}
	if c.Parallel == 0 {
		c.Parallel = 2
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}
