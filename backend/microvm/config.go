package microvm

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// Config of the driver.
type Config struct {
	StateDir   string         // the edge's; run/vm lies in it
	Edge       sandbox.EdgeID // encoded in the ids of its sandboxes
	InitBinary string         // dsec-init as built
	KernelDir  string         // where `dsec kernel install` has put a kernel, where FindKernel is nil
	Layers     layer.Node
	Log        *slog.Logger

	// FindKernel finds the kernel of machines, until the first of them needs it: that one stays the driver's. Error:
	// sandbox.ErrUnsupported, with what to run.
	FindKernel func() (*debkernel.Release, error)

	// Network is the node's, which somebody else closes; nil: machines have loopback only.
	Network *node.Network

	QEMU string // the program; "" = qemu-system-x86_64, from PATH
	// NoKVM emulates where the processor could be used.
	NoKVM bool
	Max   int // machines at once; 0 = 256
	// BootTimeout bounds the time from QEMU's start until a machine answers, but for what it waits for a processor, which other
	// machines may have; 0 = 60 s.
	BootTimeout time.Duration
	// Warm is how many machines are kept ready for each shape that was asked for lately; 0 = none, and every creation boots.
	Warm int
	// WarmIdle is how long machines are kept ready for a shape that nobody asks for; 0 = 10 minutes.
	WarmIdle time.Duration
	// LayersAs is how layers come to machines: LayersDisk, LayersMemory or LayersAuto; "" = LayersDisk.
	LayersAs string
	// Templates is where templates of shapes lie; "" = vm-templates in StateDir.
	Templates string
	// Saved bounds what is saved of machines, in SavedPlaces; nil: the disk's end does.
	Saved *saved.Space
}

// Names in a state directory.
const (
	machinesDir  = "run/vm"
	snapshotsDir = "vm-snapshots"
	templatesDir = "vm-templates"
)

// SavedPlaces are where in a state directory lies what is saved of machines, and the memory that those map which go on.
func SavedPlaces(stateDir string) []saved.Place {
	return []saved.Place{
		{Root: filepath.Join(stateDir, snapshotsDir)},
		{Root: filepath.Join(stateDir, templatesDir)},
		{Root: filepath.Join(stateDir, machinesDir), Names: []string{savedName, memoryName}},
	}
}

func (c *Config) defaults() {
	if c.QEMU == "" {
		c.QEMU = "qemu-system-x86_64"
	}
	if c.FindKernel == nil {
		dir := c.KernelDir
		c.FindKernel = func() (*debkernel.Release, error) {
			r, err := debkernel.Find(&debkernel.Options{Cache: dir})
			if err != nil {
				return nil, fmt.Errorf("%w: no kernel in %s: run `dsec kernel install`", sandbox.ErrUnsupported, dir)
			}
			return r, nil
		}
	}
	if c.Max == 0 {
		c.Max = 256
	}
	if c.BootTimeout == 0 {
		c.BootTimeout = time.Minute
	}
	if c.WarmIdle == 0 {
		c.WarmIdle = 10 * time.Minute
	}
	if c.LayersAs == "" {
		c.LayersAs = LayersDisk
	}
	if c.Templates == "" {
		c.Templates = filepath.Join(c.StateDir, templatesDir)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}
