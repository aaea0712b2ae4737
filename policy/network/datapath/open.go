package datapath

import (
	"errors"
	"log/slog"

	"github.com/opendsec/dsec/sandbox"
)

// Open opens the best datapath that this kernel takes: eBPF, else nftables, which is said in the log.
func Open(cfg Config) (Datapath, error) {
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
