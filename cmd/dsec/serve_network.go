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

// networkMode is whether a node has a network: off, auto (where it can), on (else it does not serve).
type networkMode string

const (
	networkOff  networkMode = "off"
	networkAuto networkMode = "auto"
	networkOn   networkMode = "on"
)

// networkConfig reads the options of the node's network. Options: network (auto, on, off, or on and what enforces: ebpf,
// nftables), resolver (addresses of name servers, with commas between them; default: those of /etc/resolv.conf), services (a
// file of services that are added to the built-in ones).
func networkConfig(opts map[string]string) (cfg netnode.Config, mode networkMode, err error) {
	switch v := opts["network"]; v {
	case "":
		mode = networkAuto
	case string(networkOff), string(networkAuto), string(networkOn):
		mode = networkMode(v)
	case datapath.EBPF, datapath.Nftables:
		mode, cfg.Enforcer = networkOn, v
	default:
		return cfg, mode, fmt.Errorf("--opt network=%s: %w: want auto, on or off, or on and what enforces: %s or %s", v, sandbox.ErrInvalid, datapath.EBPF, datapath.Nftables)
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
				return cfg, mode, fmt.Errorf("--opt resolver=%s: %w: want addresses like 192.0.2.1 or [2001:db8::1]:53", v, sandbox.ErrInvalid)
			}
			cfg.Upstreams = append(cfg.Upstreams, a)
		}
	}
	if path := opts["services"]; path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return cfg, mode, fmt.Errorf("--opt services: %w", err)
		}
		if cfg.Catalog, err = network.Builtin().Extend(path, text); err != nil {
			return cfg, mode, fmt.Errorf("--opt services: %w", err)
		}
	}
	return cfg, mode, nil
}

// nodeNetwork is the network of a node, nil without one, and how it came to that.
type nodeNetwork struct {
	*netnode.Network
	mode   networkMode
	absent string // why there is none
}

// openNetwork opens the node's network, if it is to have one and, by itself, can.
func openNetwork(opts map[string]string, driver sandbox.BackendName, d stateDir, log *slog.Logger, events func(netnode.Event)) (nodeNetwork, error) {
	cfg, mode, err := networkConfig(opts)
	if err != nil {
		return nodeNetwork{}, err
	}
	n := nodeNetwork{mode: mode}
	if mode == networkAuto && driver != sandbox.BackendContainer {
		n.absent = fmt.Sprintf("driver %s has none", driver)
		return n, nil
	}
	// While they run, the network is theirs.
	mine, err := networked(d)
	if err != nil {
		return n, err
	}
	if mode == networkOff {
		n.absent = "it was started with --opt network=off"
		if len(mine) == 0 {
			removeNetwork(d, log) // of an earlier start that had one: others may want it
		}
		return n, nil
	}
	cfg.Dir, cfg.Proxy, cfg.Log = networkDir(d), d.socket(netproxyRole), log
	n.Network, err = claimNetwork(d, log, func() (*netnode.Network, error) { return netnode.Open(cfg, events) })
	switch {
	case err == nil:
		log.Info("sandboxes can have a network", "enforced by", n.Kind(), "without", n.Lacks())
	case mode == networkOn || len(mine) > 0:
		return n, fmt.Errorf("network for sandboxes: %w", err)
	default:
		n.absent = err.Error()
		log.Warn("sandboxes have no network, only loopback (--opt network=on makes this an error, network=off says nothing)", "why", err)
		removeNetwork(d, log)
	}
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
