package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/sandbox"
)

// enforcerFile names the kind of datapath that the links are under: a process that takes over keeps to it.
func enforcerFile(dir string) string { return filepath.Join(dir, "enforcer") }

// openDatapath opens the datapath that is asked for, or the one that links of an earlier process are under, or the best.
func openDatapath(dir, kind string, cfg datapath.Config, linked bool) (datapath.Datapath, error) {
	if kind != "" && kind != datapath.EBPF && kind != datapath.Nftables {
		return nil, fmt.Errorf("network by %q: %w: want %s or %s", kind, sandbox.ErrInvalid, datapath.EBPF, datapath.Nftables)
	}
	b, err := os.ReadFile(enforcerFile(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	before := strings.TrimSpace(string(b))
	if kind == "" && linked {
		kind = before
	}
	cfg.Kind = kind
	if kind != "" && before != "" && kind != before {
		if linked {
			return nil, fmt.Errorf("network by %s: %w: sandboxes that run are under %s: end them first", kind, sandbox.ErrFailedPrecondition, before)
		}
		old := cfg
		old.Kind = before
		if d, err := datapath.Open(old); err != nil {
			return nil, fmt.Errorf("take away what %s left: %w", before, err)
		} else if err := d.Destroy(); err != nil {
			return nil, fmt.Errorf("take away what %s left: %w", before, err)
		}
	}
	d, err := datapath.Open(cfg)
	if err != nil {
		return nil, err
	}
	if d.Kind() != before {
		if err := os.WriteFile(enforcerFile(dir), []byte(d.Kind()+"\n"), 0o600); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}
