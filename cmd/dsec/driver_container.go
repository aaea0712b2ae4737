package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opendsec/dsec/backend/container"
	"github.com/opendsec/dsec/backend/container/pool"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/sandbox"
)

func init() {
	drivers[sandbox.BackendContainer] = startContainer
	driverOptions[sandbox.BackendContainer] = []string{"warm", "max", "parallel", "pool", "init", "fncall", "fncall-parallel"}
	driverChecks[sandbox.BackendContainer] = func(opts map[string]string) error { return containerOpts(opts, &container.Config{}) }
}

// startContainer makes the container driver. Options: warm (shells kept ready), max (sandboxes at once), parallel
// (shells being made at once), pool (bytes of a new writable-layer pool, like 8g), init (path of dsec-init).
func startContainer(ctx context.Context, c driverConfig) (sandbox.Backend, error) {
	store, err := readStore(c.opts, c.state)
	if err != nil {
		return nil, err
	}
	h := hold.NewClient(c.state.socket(holdRole))
	layers, err := store.node(c.state, h, c.log)
	if err != nil {
		return nil, err
	}
	cfg := container.Config{
		StateDir: string(c.state), Edge: c.edge, Layers: layers, Hold: h, Log: c.log,
		FirstGroup: record.CommandID(1), Network: c.net.Network,
	}
	if c.net.mode == networkAuto { // nobody has said that there will be sandboxes with a network
		cfg.WarmNetFirst = 1
	}
	if err := containerOpts(c.opts, &cfg); err != nil {
		return nil, err
	}
	if cfg.InitBinary == "" {
		if cfg.InitBinary, err = findInit(); err != nil {
			return nil, err
		}
	}
	return container.New(ctx, cfg)
}

// containerOpts reads the options of containers.
func containerOpts(opts map[string]string, cfg *container.Config) (err error) {
	for _, o := range []struct {
		name string
		to   *int
	}{{"warm", &cfg.Warm}, {"max", &cfg.MaxShells}, {"parallel", &cfg.Parallel}} {
		if v := opts[o.name]; v != "" {
			if *o.to, err = strconv.Atoi(v); err != nil || *o.to < 1 {
				return fmt.Errorf("--opt %s=%s: %w: want a number above 0", o.name, v, sandbox.ErrInvalid)
			}
		}
	}
	if v := opts["pool"]; v != "" {
		if cfg.PoolBytes, err = parseSize(v); err != nil {
			return fmt.Errorf("--opt pool: %w: %w", sandbox.ErrInvalid, err)
		}
		if cfg.PoolBytes < pool.MinSize {
			return fmt.Errorf("--opt pool=%s: %w: want at least %dm", v, sandbox.ErrInvalid, pool.MinSize>>20)
		}
	}
	if v := opts["init"]; v != "" {
		if st, err := os.Stat(v); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("--opt init=%s: %w: no such file: want the path of dsec-init", v, sandbox.ErrNotFound)
		}
		cfg.InitBinary = v
	}
	return nil
}

// findInit looks for dsec-init where it is installed: beside this program, or in its library directory.
func findInit() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(exe)
	for _, p := range []string{filepath.Join(dir, "dsec-init"), filepath.Join(dir, "..", "lib", "dsec", "dsec-init")} {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p, nil
		}
	}
	return "", fmt.Errorf("dsec-init: %w beside %s: build it (make build), or say where it lies with --opt init=PATH", sandbox.ErrNotFound, exe)
}
