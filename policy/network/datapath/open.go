package datapath

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/opendsec/dsec/sandbox"
)

// Open opens the datapath that cfg.Kind names; without one, the best that this kernel takes: eBPF, else nftables, which
// is said in the log.
func Open(cfg Config) (Datapath, error) {
	switch cfg.Kind {
	case "":
	case EBPF:
		return OpenEBPF(cfg)
	case Nftables:
		return OpenNftables(cfg)
	default:
		return nil, fmt.Errorf("datapath %q: %w: want %s or %s", cfg.Kind, sandbox.ErrInvalid, EBPF, Nftables)
	}
	d, err := OpenEBPF(cfg)
	if err == nil || !errors.Is(err, sandbox.ErrUnsupported) {
		return d, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	log.Warn("network policies are enforced by nftables: eBPF is refused", "err", err)
	d, nerr := OpenNftables(cfg)
	if nerr != nil {
		return nil, errors.Join(err, nerr)
	}
	return d, nil
}
