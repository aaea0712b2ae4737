package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/sandbox"
)

func init() {
	driverOptions[sandbox.BackendContainer] = append(driverOptions[sandbox.BackendContainer], "fullvm", "fullvm-max", "ovmf")
}

// fullvmConfig reads the options of full VMs: fullvm (on: the node does not serve without; off; auto), fullvm-max (machines
// at once), ovmf (directory of the UEFI firmware).
func fullvmConfig(opts map[string]string) (mode string, cfg fullvm.Config, err error) {
	mode = cmp.Or(opts["fullvm"], "auto")
	if mode != "on" && mode != "off" && mode != "auto" {
		return mode, cfg, fmt.Errorf("--opt fullvm=%s: %w: want on, off or auto", mode, sandbox.ErrInvalid)
	}
	cfg.OVMF = opts["ovmf"]
	if v := opts["fullvm-max"]; v != "" {
		if cfg.Max, err = strconv.Atoi(v); err != nil || cfg.Max < 1 {
			return mode, cfg, fmt.Errorf("--opt fullvm-max=%s: %w: want a number above 0", v, sandbox.ErrInvalid)
		}
	}
	return mode, cfg, nil
}

// openFullVM makes the driver of full VMs beside that of containers; nil when it is off.
func openFullVM(ctx context.Context, c driverConfig) (*fullvm.Driver, error) {
	mode, cfg, err := fullvmConfig(c.opts)
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
	d, err := fullvm.New(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start driver fullvm: %w", err)
	}
	if mode == "on" {
		if err := d.Ready(); err != nil {
			_ = d.Close(ctx)
			return nil, err
		}
	}
	return d, nil
}
