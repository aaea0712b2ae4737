package edge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// programs compiles rules and remembers what it made: sandboxes of one job share a program.
type programs struct {
	compiler *network.Compiler // nil: the node has no network

	mu   sync.Mutex
	made map[string]*network.Program
}

// maxPrograms is how many programs are remembered.
const maxPrograms = 256

// errNoNetwork is the refusal of a node that was not given a network.
var errNoNetwork = fmt.Errorf("this node has no network for sandboxes (dsec up --opt network=on), they have loopback only: %w", sandbox.ErrUnsupported)

// policy reads rules. Error: ErrInvalid, with what to write instead.
func (p *programs) policy(rules []*dsecv1.NetworkRule) (network.Policy, error) {
	catalog := network.Builtin()
	if p.compiler != nil && p.compiler.Catalog != nil {
		catalog = p.compiler.Catalog
	}
	wishes := make([]network.Wish, len(rules))
	for i, r := range rules {
		wishes[i] = network.Wish{Target: r.GetTarget(), Allow: r.GetAllow()}
	}
	return network.ParsePolicy(catalog, wishes...)
}

// program compiles a policy.
func (p *programs) program(policy network.Policy) (*network.Program, error) {
	if p.compiler == nil {
		return nil, errNoNetwork
	}
	key := strings.Join(policy.Texts(), "\n")
	p.mu.Lock()
	prog := p.made[key]
	p.mu.Unlock()
	if prog != nil {
		return prog, nil
	}
	prog, err := p.compiler.Compile(network.Layer{Source: network.FromSpec, Policy: policy})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made == nil || len(p.made) >= maxPrograms {
		p.made = map[string]*network.Program{}
	}
	p.made[key] = prog
	return prog, nil
}

// allows tells whether a policy opens anything: else it takes no network.
func allows(p network.Policy) bool {
	return p.Mode == network.ModeOpen || slices.ContainsFunc(p.Rules, func(r network.Rule) bool { return r.Action == network.Allow })
}

// checkNetwork fills in the network of a creation. Without a rule that allows something there is none.
func (e *Edge) checkNetwork(p *plan) error {
	policy, err := e.programs.policy(p.public.NetworkRules)
	if err != nil || !allows(policy) {
		return err
	}
	if !p.backend.Capabilities().Network {
		return fmt.Errorf("network rules %s: %w", strings.Join(policy.Texts(), ", "), errNoNetwork)
	}
	prog, err := e.programs.program(policy)
	if err != nil {
		return err
	}
	p.machine.Network, p.machine.NetworkGeneration = prog, 1
	return nil
}

// reachability is what a sandbox may reach; guarded by box.mu. The zero value is loopback only.
type reachability struct {
	rules          []*dsecv1.NetworkRule
	asked, applied int64
	program        *network.Program
}

func (r *reachability) proto() *dsecv1.Network {
	if r.asked == 0 {
		return nil
	}
	return &dsecv1.Network{Rules: r.rules, GenerationAsked: r.asked, GenerationApplied: r.applied}
}

// restoreNetwork puts a sandbox that was adopted under the rules that were asked for last.
func (b *box) restoreNetwork(ctx context.Context, inst sandbox.Instance) {
	b.mu.Lock()
	rules, asked := b.net.rules, b.net.asked
	b.mu.Unlock()
	if asked == 0 {
		return
	}
	if err := b.applyNetwork(ctx, inst, rules, asked); err != nil {
		b.e.log.Error("its names and checked connections are closed", "sandbox", b.id, "err", err)
	}
}

// applyNetwork compiles rules and puts them in force.
func (b *box) applyNetwork(ctx context.Context, inst sandbox.Instance, rules []*dsecv1.NetworkRule, generation int64) error {
	policy, err := b.e.programs.policy(rules)
	if err != nil {
		return err
	}
	prog, err := b.e.programs.program(policy)
	if err != nil {
		return err
	}
	n, ok := inst.(sandbox.Networked)
	if !ok {
		return errNoNetwork
	}
	if err := n.SetNetwork(ctx, uint64(generation), prog); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if generation >= b.net.applied {
		b.net.applied, b.net.program = generation, prog
	}
	return nil
}

// setNetwork replaces what the sandbox may reach. One change at a time; a paused sandbox stays paused.
func (b *box) setNetwork(ctx context.Context, req *dsecv1.SetNetworkRequest) (*dsecv1.SetNetworkResponse, error) {
	policy, err := b.e.programs.policy(req.Rules)
	if err != nil {
		return nil, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	b.mu.Lock()
	if s := b.machine.State(); s != sandbox.StateRunning && s != sandbox.StatePaused {
		defer b.mu.Unlock()
		return nil, b.endedError()
	}
	inst, asked := b.inst, b.net.asked
	if asked == 0 {
		b.mu.Unlock()
		return nil, fmt.Errorf("sandbox %s was created without a network, which cannot be added: %w: create it with a rule that allows something", b.id, sandbox.ErrFailedPrecondition)
	}
	if req.IfGeneration != 0 && req.IfGeneration != asked {
		b.mu.Unlock()
		return nil, fmt.Errorf("network of sandbox %s: %w: generation %d is in force, not %d", b.id, sandbox.ErrConflict, asked, req.IfGeneration)
	}
	entry := &record.Entry{Body: &record.Entry_NetworkAsked{NetworkAsked: &record.NetworkAsked{Rules: req.Rules, Generation: asked + 1}}}
	if err := b.append(entry); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	b.net.rules, b.net.asked = req.Rules, asked+1
	b.mu.Unlock()
	// From here on it happens, whoever waits for it.
	if err := b.log.Sync(); err != nil {
		return nil, err
	}
	if err := b.applyNetwork(context.WithoutCancel(ctx), inst, req.Rules, asked+1); err != nil {
		return nil, fmt.Errorf("network of sandbox %s: the change is recorded, and will be applied by the next start of the edge: %w", b.id, err)
	}
	resp := &dsecv1.SetNetworkResponse{}
	for _, l := range b.e.programs.leaks(policy) {
		resp.Warnings = append(resp.Warnings, l.Service+": "+l.Text)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	resp.Network = b.net.proto()
	return resp, nil
}

func (p *programs) leaks(policy network.Policy) []network.Leak {
	if p.compiler != nil && p.compiler.Catalog != nil {
		return p.compiler.Catalog.Leaks(policy)
	}
	return network.Builtin().Leaks(policy)
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
	prog, has := b.net.program, b.net.asked != 0
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

// NetworkEvent is something that happened to a sandbox's traffic.
type NetworkEvent struct {
	At             time.Time
	Sandbox        string
	Type           string // "network_" and what: denied, ended, ...
	Name           string
	Remote         netip.AddrPort
	Protocol       string
	Rule, Why      string
	Sent, Received uint64
	Suppressed     int
}

// Events that nobody could record yet are bounded, and so is what one sandbox may have recorded in a second.
const (
	maxNetworkEvents  = 4096
	networkEventsRate = 20
)

// NetworkEvent records an event in the sandbox's record. It does not block; what is too much is counted.
func (e *Edge) NetworkEvent(ev NetworkEvent) {
	select {
	case e.netEvents <- ev:
	default:
		e.netLost.Add(1)
	}
}

// followNetwork writes network events until the edge closes.
func (e *Edge) followNetwork() {
	for {
		select {
		case ev := <-e.netEvents:
			if b, err := e.find(ev.Sandbox); err == nil {
				b.noteNetwork(ev)
			}
		case <-e.closing:
			return
		}
	}
}

func (b *box) noteNetwork(ev NetworkEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.machine.State(); s != sandbox.StateRunning && s != sandbox.StatePaused {
		return
	}
	if now := b.e.boot(); now-b.netSecond >= time.Second {
		b.netSecond, b.netNoted = now, 0
	}
	if b.netNoted++; b.netNoted > networkEventsRate {
		b.netLeftOut++
		return
	}
	note := &record.Note{Type: ev.Type, Message: ev.Why, Attributes: map[string]string{}}
	for k, v := range map[string]string{"name": ev.Name, "protocol": ev.Protocol, "rule": ev.Rule} {
		if v != "" {
			note.Attributes[k] = clip(v, 256)
		}
	}
	if ev.Remote.IsValid() {
		note.Attributes["remote"] = ev.Remote.String()
	}
	if ev.Sent > 0 || ev.Received > 0 {
		note.Attributes["sent"], note.Attributes["received"] = fmt.Sprint(ev.Sent), fmt.Sprint(ev.Received)
	}
	if n := ev.Suppressed + b.netLeftOut; n > 0 {
		note.Attributes["left_out"] = fmt.Sprint(n)
		b.netLeftOut = 0
	}
	if err := b.append(&record.Entry{Body: &record.Entry_Note{Note: note}}); err != nil {
		b.e.log.Debug("record a network event", "sandbox", b.id, "err", err)
	}
}

// record is what a checkpoint keeps of it.
func (r *reachability) record() *record.NetworkAsked {
	if r.asked == 0 {
		return nil
	}
	return &record.NetworkAsked{Rules: slices.Clone(r.rules), Generation: r.asked}
}
