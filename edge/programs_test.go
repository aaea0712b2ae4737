package edge

import (
	"errors"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

func of(source, rules string, limits *dsecv1.NetworkLimits) *dsecv1.NetworkLayer {
	return &dsecv1.NetworkLayer{Source: source, Policy: &dsecv1.NetworkPolicy{Rules: written(rules), Limits: limits}}
}

// written reads rules with spaces between them.
func written(s string) (out []*dsecv1.NetworkRule) {
	for _, t := range strings.Fields(s) {
		target, deny := strings.CutPrefix(t, "!")
		out = append(out, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	return out
}

// TestParties: whose policies hold together, and whether a sandbox takes a network for them.
func TestParties(t *testing.T) {
	base, agent := of("environment base/b", "pypi npm", nil), of("environment toolkit/a", "pypi", &dsecv1.NetworkLimits{Connections: 5})
	limits := of("project p", "", &dsecv1.NetworkLimits{Connections: 9, BandwidthBps: 4096})
	for _, c := range []struct {
		name   string
		asked  *record.NetworkAsked
		opens  bool
		pypi   string // who decides, "+" before who allows
		npm    string
		limits network.Limits
		layers int
	}{
		{name: "nothing", asked: &record.NetworkAsked{Inherits: true}, pypi: "spec", npm: "spec", layers: 1},
		{name: "own", asked: &record.NetworkAsked{Rules: written("pypi")}, opens: true, pypi: "+spec", npm: "spec", layers: 1},
		{name: "own denials", asked: &record.NetworkAsked{Rules: written("!pypi")}, pypi: "spec", npm: "spec", layers: 1},
		{name: "closed since", asked: &record.NetworkAsked{Environment: []*dsecv1.NetworkLayer{base}}, pypi: "spec", npm: "spec", layers: 2},
		{name: "inherited", asked: &record.NetworkAsked{Inherits: true, Environment: []*dsecv1.NetworkLayer{base}}, opens: true, pypi: "+environment base/b", npm: "+environment base/b", layers: 1},
		{name: "inherited, narrower above", asked: &record.NetworkAsked{Inherits: true, Environment: []*dsecv1.NetworkLayer{base, agent}}, opens: true,
			pypi: "+environment base/b", npm: "environment toolkit/a", limits: network.Limits{Connections: 5}, layers: 2},
		{name: "inherited none", asked: &record.NetworkAsked{Inherits: true, Environment: []*dsecv1.NetworkLayer{base, of("environment w", "none", nil)}},
			pypi: "environment w", npm: "environment w", layers: 2},
		{name: "own beside the environment's", asked: &record.NetworkAsked{Rules: written("open"), Environment: []*dsecv1.NetworkLayer{agent}}, opens: true,
			pypi: "+environment toolkit/a", npm: "environment toolkit/a", limits: network.Limits{Connections: 5}, layers: 2},
		{name: "a ceiling opens nothing", asked: &record.NetworkAsked{Inherits: true, Ceiling: of("project p", "open", nil)}, pypi: "spec", npm: "spec", layers: 2},
		{name: "a ceiling bounds", asked: &record.NetworkAsked{Rules: written("open"), Ceiling: of("project p", "npm", nil)}, opens: true, pypi: "project p", npm: "+project p", layers: 2},
		{name: "limits alone", asked: &record.NetworkAsked{Rules: written("pypi"), Limits: &dsecv1.NetworkLimits{Connections: 20}, Ceiling: limits}, opens: true,
			pypi: "+spec", npm: "spec", limits: network.Limits{Connections: 9, Bandwidth: 4096}, layers: 1},
		{name: "limits of its own where rules are inherited", asked: &record.NetworkAsked{Inherits: true, Limits: &dsecv1.NetworkLimits{Connections: 2}, Environment: []*dsecv1.NetworkLayer{agent}},
			opens: true, pypi: "+environment toolkit/a", npm: "environment toolkit/a", limits: network.Limits{Connections: 2}, layers: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := programs{compiler: &network.Compiler{}}
			prog, opens, err := p.program(c.asked)
			if err != nil {
				t.Fatal(err)
			}
			if opens != c.opens || prog.Limits != c.limits || len(prog.Layers) != c.layers {
				t.Errorf("opens %v, limits %v, %d layers: want %v, %v, %d", opens, prog.Limits, len(prog.Layers), c.opens, c.limits, c.layers)
			}
			for host, want := range map[string]string{"pypi.org": c.pypi, "registry.npmjs.org": c.npm} {
				d, err := prog.Explain(host, 443, network.TCP)
				if err != nil {
					t.Fatal(err)
				}
				who, allowed := strings.CutPrefix(want, "+")
				// Of several parties that allow, the first with a rule for it is named.
				if d.Allowed != allowed || !d.Allowed && string(d.Source) != who {
					t.Errorf("%s: %v, want %s", host, d, want)
				}
			}
			if again, _, err := p.program(c.asked); err != nil || again != prog {
				t.Errorf("compiled twice: %v", err)
			}
		})
	}
	p := programs{}
	if _, _, err := p.program(&record.NetworkAsked{Ceiling: of("project p", "pipy", nil)}); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "project p") {
		t.Errorf("a policy that is wrong: %v", err)
	}
}

func TestPrivateNetworkNames(t *testing.T) {
	for _, c := range []struct{ spec, name, host, project, network, want string }{
		{spec: "job1", name: "db", network: "default/job1", want: "db"},
		{spec: "job1", project: "p", host: "Web.example.org", network: "p/job1", want: "web"},
		{spec: "job1", network: "default/job1"},
		{},
	} {
		network, name, err := privateNetwork(&dsecv1.SandboxSpec{PrivateNetwork: c.spec, NetworkName: c.name, Hostname: c.host}, c.project)
		if err != nil || network != c.network || name != c.want {
			t.Errorf("%+v: %q, %q, %v", c, network, name, err)
		}
	}
	for _, bad := range []*dsecv1.SandboxSpec{
		{NetworkName: "db"}, {PrivateNetwork: "a/b"}, {PrivateNetwork: "A"}, {PrivateNetwork: "-a"}, {PrivateNetwork: strings.Repeat("a", 64)},
		{PrivateNetwork: "a", NetworkName: "pypi.org"}, {PrivateNetwork: "a", NetworkName: "localhost"}, {PrivateNetwork: "a", Hostname: "localhost"},
	} {
		if _, _, err := privateNetwork(bad, ""); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestForkOfClosed: the fork of a sandbox whose rules were all taken away has none either, whatever its environment allows.
func TestForkOfClosed(t *testing.T) {
	env := []*dsecv1.NetworkLayer{of("environment base/b", "pypi", nil)}
	for _, c := range []struct {
		asked *record.NetworkAsked
		opens bool
	}{
		{&record.NetworkAsked{Environment: env}, false},
		{&record.NetworkAsked{Environment: env, Inherits: true}, true},
		{&record.NetworkAsked{Environment: env, Rules: written("pypi")}, true},
	} {
		b := &box{created: &record.Created{Spec: &dsecv1.SandboxSpec{}}, net: reachability{asked: c.asked}}
		spec, err := b.forkSpec(&dsecv1.ForkSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		p := programs{}
		_, opens, err := p.program(&record.NetworkAsked{Rules: spec.NetworkRules, Inherits: len(spec.NetworkRules) == 0, Environment: env})
		if err != nil || opens != c.opens {
			t.Errorf("the fork of %v has rules %v, which open: %v, %v", c.asked, spec.NetworkRules, opens, err)
		}
	}
}
