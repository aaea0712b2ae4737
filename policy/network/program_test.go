package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// many is a policy of n rules: a third each of exact domains, wildcards and ranges.
func many(tb testing.TB, n int) Policy {
	tb.Helper()
	p := Policy{Mode: ModeRules}
	for i := range n {
		r := Rule{Action: Allow}
		switch i % 3 {
		case 0:
			r.Domain = fmt.Sprintf("host%d.example.org", i)
		case 1:
			r.Domain = fmt.Sprintf("*.zone%d.example.net", i)
		default:
			r.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
			r.Ports = []PortRange{{443, 443}}
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

func TestTenThousandRules(t *testing.T) {
	p, err := Compile(Layer{FromSpec, many(t, 10000)}, Layer{FromProject, Policy{Mode: ModeOpen}})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"host9999.example.org": true, "host9998.example.org": false, "a.b.zone9997.example.net": true, "zone9997.example.net": false,
	} {
		if d := p.Name(host); d.Allowed != want {
			t.Errorf("%s: %v", host, d.Decision)
		}
	}
	if n := len(p.Static); n < 2*3333 || n > 2*3333+64 {
		t.Errorf("%d entries", n)
	}
}

func TestPolicyBounds(t *testing.T) {
	over := many(t, MaxRules+1)
	if _, err := Compile(Layer{FromSpec, over}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("too many rules: %v", err)
	}
	wide := Policy{Mode: ModeRules}
	for i := range 40 {
		r := Rule{Action: Allow, Prefix: netip.MustParsePrefix("203.0.113.0/24")}
		r.Ports = []PortRange{{uint16(10*i + 1), uint16(10*i + 2)}}
		wide.Rules = append(wide.Rules, r)
	}
	if _, err := Compile(Layer{FromSpec, wide}); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "203.0.113.0/24") {
		t.Errorf("too many ports at one prefix: %v", err)
	}
	for what, r := range map[string]Rule{
		"nothing":             {Action: Allow},
		"two targets":         {Action: Allow, Service: "pypi", Domain: "pypi.org"},
		"upper case":          {Action: Allow, Domain: "PyPI.org"},
		"host bits":           {Action: Allow, Prefix: netip.MustParsePrefix("203.0.113.1/24")},
		"unsorted ports":      {Action: Allow, Domain: "pypi.org", Ports: []PortRange{{443, 443}, {80, 80}}},
		"reversed ports":      {Action: Allow, Domain: "pypi.org", Ports: []PortRange{{443, 80}}},
		"port 0":              {Action: Allow, Domain: "pypi.org", Ports: []PortRange{{0, 80}}},
		"unknown protocol":    {Action: Allow, Domain: "pypi.org", Protocol: 9},
		"IPv4 inside IPv6":    {Action: Allow, Prefix: netip.MustParsePrefix("::ffff:10.0.0.0/104")},
		"the metadata server": {Action: Allow, Prefix: netip.MustParsePrefix("169.254.169.254/32")},
	} {
		if _, err := Compile(Layer{FromSpec, Policy{Mode: ModeRules, Rules: []Rule{r}}}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Compile(Layer{FromSpec, Policy{Rules: []Rule{{Action: Allow, Service: "pypi"}}}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("none with rules: %v", err)
	}
}

func TestWishes(t *testing.T) {
	for _, bad := range [][]Wish{
		{{"open", false}}, {{"none", false}}, {{"none", true}, {"pypi", true}}, {{"!pypi", false}}, {{"pypi", true}, {"PyPI", false}},
		{{"pypi.org.", true}, {"!PYPI.org", true}}, {{"", true}},
	} {
		if _, err := ParsePolicy(Builtin(), bad...); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	p, err := ParsePolicy(Builtin(), Wish{"npm", false}, Wish{"pypi", true}, Wish{"Open", true})
	if err != nil || p.Mode != ModeOpen || strings.Join(p.Texts(), " ") != "open !npm pypi" {
		t.Errorf("%v %v", p.Texts(), err)
	}
	if p, err := ParsePolicy(Builtin()); err != nil || p.Mode != ModeNone {
		t.Errorf("no wishes: %v %v", p, err)
	}
}

func TestLimitsNarrow(t *testing.T) {
	p, err := Compile(
		Layer{FromSpec, Policy{Mode: ModeOpen, Limits: Limits{Connections: 100}}},
		Layer{FromProject, Policy{Mode: ModeOpen, Limits: Limits{Bandwidth: 1 << 20, Connections: 50}}})
	if err != nil || p.Limits != (Limits{1 << 20, 50}) {
		t.Errorf("%+v %v", p.Limits, err)
	}
}

func TestDigest(t *testing.T) {
	digest := func(c Compiler, texts ...string) string {
		p, err := ParseTexts(Builtin(), texts...)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := c.Compile(Layer{FromSpec, p})
		if err != nil {
			t.Fatal(err)
		}
		return prog.Digest()
	}
	first, again := digest(Compiler{}, "pypi", "!npm"), digest(Compiler{}, "pypi", "!npm")
	if first != again {
		t.Error("the same policy has two digests")
	}
	if digest(Compiler{}, "pypi") == digest(Compiler{}, "npm") {
		t.Error("two policies have one digest")
	}
	more, err := Builtin().Extend("x", []byte("services: {pypi: {title: x, domains: [other.example]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if digest(Compiler{}, "pypi") == digest(Compiler{Catalog: more}, "pypi") {
		t.Error("another catalogue does not show in the digest")
	}
}

func BenchmarkName(b *testing.B) {
	for _, n := range []int{10, 10000} {
		p, err := Compile(Layer{FromSpec, many(b, n)})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				p.Name("host9.example.org")
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{10, 10000} {
		policy := many(b, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Compile(Layer{FromSpec, policy}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
