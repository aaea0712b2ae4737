package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	netnode "github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// networkDir is where the node's network keeps what outlives its processes.
func networkDir(d stateDir) string { return d.path("run", "network") }

// networkConfig reads the options of the node's network; on tells whether it is to have one. Options: network (on, off, or
// on and what enforces: ebpf, nftables), resolver (addresses of name servers, with commas between them; default: those of /etc/resolv.conf), services (a
// file of services that are added to the built-in ones).
func networkConfig(opts map[string]string) (cfg netnode.Config, on bool, err error) {
	switch v := opts["network"]; v {
	case "", "off":
	case "on":
		on = true
	case datapath.EBPF, datapath.Nftables:
		on, cfg.Enforcer = true, v
	default:
		return cfg, false, fmt.Errorf("--opt network=%s: %w: want on or off, or on and what enforces: %s or %s", v, sandbox.ErrInvalid, datapath.EBPF, datapath.Nftables)
	}
	if v := opts["resolver"]; v != "" {
		for _, text := range strings.Split(v, ",") {
			a, err := netip.ParseAddrPort(text)
			if err != nil {
				var ip netip.Addr
				if ip, err = netip.ParseAddr(text); err == nil {
					a = netip.AddrPortFrom(ip, 53)
				}
			}
			if err != nil {
				return cfg, false, fmt.Errorf("--opt resolver=%s: %w: want addresses like 192.0.2.1 or [2001:db8::1]:53", v, sandbox.ErrInvalid)
			}
			cfg.Upstreams = append(cfg.Upstreams, a)
		}
	}
	if path := opts["services"]; path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return cfg, false, fmt.Errorf("--opt services: %w", err)
		}
		if cfg.Catalog, err = network.Builtin().Extend(path, text); err != nil {
			return cfg, false, fmt.Errorf("--opt services: %w", err)
		}
	}
	return cfg, on, nil
}

// openNetwork opens the node's network, if it is to have one.
func openNetwork(opts map[string]string, d stateDir, log *slog.Logger, events func(netnode.Event)) (*netnode.Network, error) {
	cfg, on, err := networkConfig(opts)
	if err != nil || !on {
		return nil, err
	}
	cfg.Dir, cfg.Log = networkDir(d), log
	n, err := netnode.Open(cfg, events)
	if err != nil {
		return nil, fmt.Errorf("network for sandboxes: %w", err)
	}
	log.Info("sandboxes can have a network", "enforced by", n.Kind(), "without", n.Lacks())
	return n, nil
}

// networkSink hands events of the network, which is there first, to the edge.
type networkSink struct{ edge atomic.Pointer[edge.Edge] }

func (s *networkSink) tell(ev netnode.Event) {
	if e := s.edge.Load(); e != nil {
		e.NetworkEvent(edge.NetworkEvent{At: ev.Time, Sandbox: ev.Key, Type: "network_" + ev.Kind, Name: ev.Name, Remote: ev.Remote,
			Protocol: ev.Protocol, Rule: ev.Rule, Why: ev.Why, Sent: ev.Sent, Received: ev.Received, Suppressed: ev.Suppressed})
	}
}
