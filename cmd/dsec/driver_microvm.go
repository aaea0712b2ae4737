package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/sandbox"
)

func init() {
	driverOptions[sandbox.BackendContainer] = append(driverOptions[sandbox.BackendContainer], "microvm", "microvm-max", "microvm-warm", "microvm-layers", "kernel", "pause-keeps-memory")
}

// kernelDir is where Debian's kernel for machines is kept; those that were built are beside it.
func kernelDir() string { return filepath.Join(cacheDir(), "kernel") }

// cacheDir is where what was downloaded and built is kept.
func cacheDir() string { return cmp.Or(os.Getenv("DSEC_CACHE"), "/var/cache/dsec") }

// microvmConfig reads the options of machines: microvm (on: the node does not serve without; off; auto), microvm-max
// (machines at once), microvm-warm (machines kept ready for each shape that is in use; 0 = none), microvm-layers (blk, pmem or
// auto: how layers come to them), kernel (see chooseKernel).
func microvmConfig(opts map[string]string) (mode string, cfg microvm.Config, err error) {
	mode = cmp.Or(opts["microvm"], "auto")
	if mode != "on" && mode != "off" && mode != "auto" {
		return mode, cfg, fmt.Errorf("--opt microvm=%s: %w: want on, off or auto", mode, sandbox.ErrInvalid)
	}
	if err := checkKernelOpt(opts["kernel"]); err != nil {
		return mode, cfg, err
	}
	cfg.FindKernel = func() (*debkernel.Release, error) { return chooseKernel(opts["kernel"]) }
	if v := opts["microvm-max"]; v != "" {
		if cfg.Max, err = strconv.Atoi(v); err != nil || cfg.Max < 1 {
			return mode, cfg, fmt.Errorf("--opt microvm-max=%s: %w: want a number above 0", v, sandbox.ErrInvalid)
		}
	}
	cfg.Warm = defaultWarmMachines
	if v := opts["microvm-warm"]; v != "" {
		if cfg.Warm, err = strconv.Atoi(v); err != nil || cfg.Warm < 0 || cfg.Warm > maxWarmMachines {
			return mode, cfg, fmt.Errorf("--opt microvm-warm=%s: %w: want a number from 0 to %d", v, sandbox.ErrInvalid, maxWarmMachines)
		}
	}
	switch v := opts["microvm-layers"]; v {
	case "", microvm.LayersDisk, microvm.LayersMemory, microvm.LayersAuto:
		cfg.LayersAs = v
	default:
		return mode, cfg, fmt.Errorf("--opt microvm-layers=%s: %w: want blk (disks), pmem (memory that all machines share) or auto (pmem where that can be)", v, sandbox.ErrInvalid)
	}
	return mode, cfg, nil
}

// pauseKeepsMemory reads how long paused sandboxes keep their memory: a duration, 0, or "forever".
func pauseKeepsMemory(opts map[string]string) (time.Duration, error) {
	switch v := opts["pause-keeps-memory"]; v {
	case "":
		return 0, nil // the default
	case "forever":
		return -1, nil
	default:
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("--opt pause-keeps-memory=%s: %w: want how long, as 30s or 0s, or forever for what is never put on disk", v, sandbox.ErrInvalid)
		}
		return max(d, 1), nil
	}
}

// Machines kept ready for a shape.
const (
	defaultWarmMachines = 2
	maxWarmMachines     = 64
)

// openMicroVM makes the driver of machines beside that of containers; nil when it is off. Nothing is started, and what
// is missing is said to whoever asks for a machine, unless they are a condition.
func openMicroVM(ctx context.Context, c driverConfig) (*microvm.Driver, error) {
	mode, cfg, err := microvmConfig(c.opts)
	if err != nil || mode == "off" {
		return nil, err
	}
	store, err := readStore(c.opts, c.state)
	if err != nil {
		return nil, err
	}
	cfg.StateDir, cfg.Edge, cfg.Log, cfg.Network, cfg.Saved = string(c.state), c.edge, c.log, c.net.Network, c.saved
	if cfg.Layers, err = store.node(c.state, hold.NewClient(c.state.socket(holdRole)), c.log); err != nil {
		return nil, err
	}
	if cfg.InitBinary = c.opts["init"]; cfg.InitBinary == "" {
		if cfg.InitBinary, err = findInit(); err != nil {
			return nil, err
		}
	}
	d, err := microvm.New(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start driver microvm: %w", err)
	}
	if mode == "on" {
		if err := d.Ready(); err != nil {
			_ = d.Close(ctx)
			return nil, err
		}
	}
	return d, nil
}
