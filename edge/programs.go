package edge

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/policy/network"
)

// programs compiles policies and remembers what it made: sandboxes of one job share a program.
type programs struct {
	compiler *network.Compiler // nil: the node has no network

	mu   sync.Mutex
	made map[string]*network.Program
}

// maxPrograms is how many programs are remembered.
const maxPrograms = 256

// Bounds of limits: less bandwidth would let no packet pass.
const (
	minBandwidth   = 1024
	maxConnections = 1 << 30
)

func (p *programs) catalog() *network.Catalog {
	if p.compiler != nil && p.compiler.Catalog != nil {
		return p.compiler.Catalog
	}
	return network.Builtin()
}

// policy reads one party's rules and limits. Error: ErrInvalid, with what to write instead.
func (p *programs) policy(rules []*dsecv1.NetworkRule, limits *dsecv1.NetworkLimits) (network.Policy, error) {
	wishes := make([]network.Wish, len(rules))
	for i, r := range rules {
		wishes[i] = network.Wish{Target: r.GetTarget(), Allow: r.GetAllow()}
	}
	policy, err := network.ParsePolicy(p.catalog(), wishes...)
	if err != nil {
		return policy, err
	}
	bandwidth, connections := limits.GetBandwidthBps(), limits.GetConnections()
	if bandwidth != 0 && bandwidth < minBandwidth {
		return policy, invalid("network limits: bandwidth_bps is %d: want at least %d bytes a second, or 0 for no limit", bandwidth, minBandwidth)
	}
	if connections < 0 || connections > maxConnections {
		return policy, invalid("network limits: connections is %d: want 1 to %d, or 0 for the node's own bound", connections, maxConnections)
	}
	policy.Limits = network.Limits{Bandwidth: uint64(bandwidth), Connections: uint32(connections)}
	return policy, nil
}

// layers are the policies of all parties, and whether the sandbox's own (or, where it has none, its environment's) open
// anything: else it takes no network. A ceiling alone opens nothing.
func (p *programs) layers(a *record.NetworkAsked) (layers []network.Layer, opens bool, err error) {
	var limits network.Limits
	add := func(source string, rules []*dsecv1.NetworkRule, l *dsecv1.NetworkLimits) error {
		policy, err := p.policy(rules, l)
		if err != nil {
			return fmt.Errorf("network of the %s: %w", source, err)
		}
		limits = limits.Least(policy.Limits)
		policy.Limits = network.Limits{}
		if len(rules) > 0 || source == string(network.FromSpec) {
			layers = append(layers, network.Layer{Source: network.Source(source), Policy: policy})
		}
		return nil
	}
	if a.Inherits && slices.ContainsFunc(a.Environment, func(l *dsecv1.NetworkLayer) bool { return len(l.GetPolicy().GetRules()) > 0 }) {
		if _, err = p.policy(nil, a.Limits); err == nil {
			limits = network.Limits{Bandwidth: uint64(a.Limits.GetBandwidthBps()), Connections: uint32(a.Limits.GetConnections())}
		}
	} else {
		err = add(string(network.FromSpec), a.Rules, a.Limits)
	}
	own := len(layers)
	for _, l := range a.Environment {
		if err == nil {
			err = add(l.GetSource(), l.GetPolicy().GetRules(), l.GetPolicy().GetLimits())
		}
	}
	if err != nil {
		return nil, false, err
	}
	if own == 0 {
		own = len(layers)
	}
	opens = !slices.ContainsFunc(layers[:own], func(l network.Layer) bool { return !allows(l.Policy) })
	if c := a.Ceiling; c != nil {
		if err := add(c.GetSource(), c.GetPolicy().GetRules(), c.GetPolicy().GetLimits()); err != nil {
			return nil, false, err
		}
	}
	layers[0].Policy.Limits = limits
	return layers, opens, nil
}

// allows tells whether a policy opens anything.
func allows(p network.Policy) bool {
	return p.Mode == network.ModeOpen || slices.ContainsFunc(p.Rules, func(r network.Rule) bool { return r.Action == network.Allow })
}

// program compiles what is asked for; opens is that of layers. Without a network on this node the program is nil.
func (p *programs) program(a *record.NetworkAsked) (prog *network.Program, opens bool, err error) {
	layers, opens, err := p.layers(a)
	if err != nil || p.compiler == nil {
		return nil, opens, err
	}
	var key strings.Builder
	for _, l := range layers {
		fmt.Fprintf(&key, "%s %v\n%s\n\n", l.Source, l.Policy.Limits, strings.Join(l.Policy.Texts(), "\n"))
	}
	p.mu.Lock()
	prog = p.made[key.String()]
	p.mu.Unlock()
	if prog != nil {
		return prog, opens, nil
	}
	if prog, err = p.compiler.Compile(layers...); err != nil {
		return nil, opens, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made == nil || len(p.made) >= maxPrograms {
		p.made = map[string]*network.Program{}
	}
	p.made[key.String()] = prog
	return prog, opens, nil
}

// warnings say what the services that a policy allows can leak.
func (p *programs) warnings(policy network.Policy) []string {
	var out []string
	for _, l := range p.catalog().Leaks(policy) {
		out = append(out, l.Service+": "+l.Text)
	}
	return out
}
