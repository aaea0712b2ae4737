package edge

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// noNetwork is the refusal of a node that has no network, with the reason.
func (e *Edge) noNetwork() error {
	why := e.cfg.NetworkAbsent
	if why != "" {
		why = ": " + why
	}
	return fmt.Errorf("this node has no network for sandboxes (dsec up --opt network=on), they have loopback only%s: %w", why, sandbox.ErrUnsupported)
}

// checkNetwork fills in the network of a creation. Where nothing is allowed, and no private network is asked for, there
// is none.
func (e *Edge) checkNetwork(p *plan, req *dsecv1.CreateResolvedRequest) error {
	private, name, err := privateNetwork(p.public, req.Project)
	if err != nil {
		return err
	}
	asked := &record.NetworkAsked{
		Generation: 1, Rules: p.public.NetworkRules, Limits: p.public.NetworkLimits, Inherits: len(p.public.NetworkRules) == 0,
		Environment: req.NetworkDefaults, PrivateNetwork: private, NetworkName: name,
	}
	asked.Ceiling, asked.Revision = e.ceilings.of(req.Project, req.Ceiling, req.CeilingsRevision)
	prog, opens, err := e.programs.program(asked)
	if err != nil || !opens && private == "" {
		return err
	}
	if !p.backend.Capabilities().Network || e.programs.compiler == nil {
		return fmt.Errorf("%s: %w", wanted(asked), e.noNetwork())
	}
	p.network = asked
	p.program = prog
	p.machine.Network, p.machine.NetworkGeneration = placed(asked, prog), 1
	return nil
}

// wanted says for people what a sandbox needs a network for.
func wanted(a *record.NetworkAsked) string {
	if a.PrivateNetwork != "" {
		return "private network"
	}
	rules, of := a.Rules, ""
	if a.Inherits {
		for _, l := range a.Environment {
			rules, of = append(rules, l.Policy.GetRules()...), " of the "+l.Source+" (ask for \"none\" to do without)"
		}
	}
	return "network rules " + strings.Join(texts(rules), ", ") + of
}

// placed is the program as a driver takes it.
func placed(a *record.NetworkAsked, prog *network.Program) sandbox.NetworkPolicy {
	if a.PrivateNetwork == "" {
		return prog
	}
	return &network.Member{Program: prog, Network: a.PrivateNetwork, Name: a.NetworkName}
}

// texts are rules as they are written.
func texts(rules []*dsecv1.NetworkRule) []string {
	var out []string
	for _, r := range rules {
		t := r.GetTarget()
		if !r.GetAllow() {
			t = "!" + t
		}
		out = append(out, t)
	}
	return out
}

// reachability is what a sandbox may reach; guarded by box.mu. The zero value is loopback only.
type reachability struct {
	asked   *record.NetworkAsked // does not change; nil: none
	applied int64
	program *network.Program
}

func (r *reachability) proto() *dsecv1.Network {
	if r.asked == nil {
		return nil
	}
	_, name, _ := strings.Cut(r.asked.PrivateNetwork, "/")
	out := &dsecv1.Network{Rules: r.asked.Rules, GenerationAsked: r.asked.Generation, GenerationApplied: r.applied, Limits: r.asked.Limits,
		Above: r.asked.Environment, PrivateNetwork: name, NetworkName: r.asked.NetworkName}
	if r.asked.Ceiling != nil {
		out.Above = append(out.Above[:len(out.Above):len(out.Above)], r.asked.Ceiling)
	}
	return out
}

// restoreNetwork puts a sandbox that was adopted under what was asked for last.
func (b *box) restoreNetwork(ctx context.Context, inst sandbox.Instance) {
	b.mu.Lock()
	asked := b.net.asked
	b.mu.Unlock()
	if asked == nil {
		return
	}
	if err := b.applyNetwork(ctx, inst, asked); err != nil {
		b.e.log.Error("its names and checked connections are closed", "sandbox", b.id, "err", err)
	}
}

// applyNetwork compiles what is asked for and puts it in force.
func (b *box) applyNetwork(ctx context.Context, inst sandbox.Instance, asked *record.NetworkAsked) error {
	prog, _, err := b.e.programs.program(asked)
	if err != nil {
		return err
	}
	n, ok := inst.(sandbox.Networked)
	if !ok || b.e.programs.compiler == nil {
		return b.e.noNetwork()
	}
	if err := n.SetNetwork(ctx, uint64(asked.Generation), placed(asked, prog)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked.Generation >= b.net.applied {
		b.net.applied, b.net.program = asked.Generation, prog
	}
	return nil
}

// changeNetwork replaces what is asked for by what change makes of it, under the next generation; nil is no change. One at a
// time; a paused sandbox stays paused.
func (b *box) changeNetwork(ctx context.Context, change func(now *record.NetworkAsked) (*record.NetworkAsked, error)) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	b.mu.Lock()
	if s := b.machine.State(); s != sandbox.StateRunning && s != sandbox.StatePaused {
		defer b.mu.Unlock()
		return b.endedError()
	}
	inst, now := b.inst, b.net.asked
	if now == nil {
		b.mu.Unlock()
		return fmt.Errorf("sandbox %s was created without a network, which cannot be added: %w: create it with a rule that allows something", b.id, sandbox.ErrFailedPrecondition)
	}
	next, err := change(now)
	if err != nil || next == nil {
		b.mu.Unlock()
		return err
	}
	next.Generation = now.Generation + 1
	if _, _, err := b.e.programs.program(next); err != nil {
		b.mu.Unlock()
		return err
	}
	if err := b.append(&record.Entry{Body: &record.Entry_NetworkAsked{NetworkAsked: next}}); err != nil {
		b.mu.Unlock()
		return err
	}
	b.net.asked = next
	b.mu.Unlock()
	// From here on it happens, whoever waits for it.
	if err := b.log.Sync(); err != nil {
		return err
	}
	if err := b.applyNetwork(context.WithoutCancel(ctx), inst, next); err != nil {
		return fmt.Errorf("network of sandbox %s: the change is recorded, and will be applied by the next start of the edge: %w", b.id, err)
	}
	return nil
}

// setNetwork replaces what the sandbox itself may reach.
func (b *box) setNetwork(ctx context.Context, req *dsecv1.SetNetworkRequest) (*dsecv1.SetNetworkResponse, error) {
	policy, err := b.e.programs.policy(req.Rules, req.Limits)
	if err != nil {
		return nil, err
	}
	if req.KeepRules && (len(req.Rules) > 0 || req.Limits == nil) {
		return nil, invalid("keep_rules: give limits and no rules")
	}
	err = b.changeNetwork(ctx, func(now *record.NetworkAsked) (*record.NetworkAsked, error) {
		if req.IfGeneration != 0 && req.IfGeneration != now.Generation {
			return nil, fmt.Errorf("network of sandbox %s: %w: generation %d is in force, not %d", b.id, sandbox.ErrConflict, now.Generation, req.IfGeneration)
		}
		next := proto.CloneOf(now)
		if !req.KeepRules {
			next.Rules, next.Inherits = req.Rules, false
		}
		if req.Limits != nil {
			next.Limits = req.Limits
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &dsecv1.SetNetworkResponse{Warnings: b.e.programs.warnings(policy)}
	b.mu.Lock()
	defer b.mu.Unlock()
	resp.Network = b.net.proto()
	return resp, nil
}

// explainNetwork tells what would happen to a connection.
func (b *box) explainNetwork(req *dsecv1.ExplainNetworkRequest) (*dsecv1.ExplainNetworkResponse, error) {
	proto, ok := network.TCP, true
	if req.Protocol != "" {
		proto, ok = network.ParseProtocol(req.Protocol)
	}
	if !ok || proto == network.Any {
		return nil, invalid("protocol is %.20q: want tcp, udp or icmp", req.Protocol)
	}
	port := req.Port
	if port == 0 {
		port = 443
	}
	if port < 1 || port > 65535 {
		return nil, invalid("port is %d: want 1 to 65535", req.Port)
	}
	b.mu.Lock()
	prog, has := b.net.program, b.net.asked != nil
	b.mu.Unlock()
	if !has {
		return &dsecv1.ExplainNetworkResponse{Source: string(network.FromSpec), Why: "the sandbox was created without a network: it has loopback only"}, nil
	}
	if prog == nil {
		return nil, fmt.Errorf("network of sandbox %s is not in force yet: %w", b.id, sandbox.ErrUnavailable)
	}
	d, err := prog.Explain(req.Host, uint16(port), proto)
	if err != nil {
		return nil, err
	}
	return &dsecv1.ExplainNetworkResponse{Allowed: d.Allowed, Rule: d.Rule, Source: string(d.Source), Why: d.Why}, nil
}
