package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The model: rules read one by one, for one destination at a time, as doc.go states them.

type target struct {
	name  string // "" for none
	addr  netip.Addr
	proto Protocol
	port  uint16
}

func modelRule(r Rule, d target) bool {
	type want struct {
		domains []string
		ports   []PortRange
	}
	var wants []want
	switch {
	case r.Service != "":
		s, _ := Builtin().Get(r.Service)
		for _, part := range s.parts {
			wants = append(wants, want{part.domains, part.ports})
		}
	case r.Domain != "":
		wants = []want{{[]string{r.Domain}, []PortRange{{80, 80}, {443, 443}}}}
	default:
		if !r.Prefix.Contains(d.addr) {
			return false
		}
		return modelPorts(r, d, nil, false)
	}
	for _, w := range wants {
		for _, domain := range w.domains {
			match := domain == d.name
			if suffix, ok := strings.CutPrefix(domain, "*"); ok {
				match = strings.HasSuffix(d.name, suffix) && d.name != ""
			}
			if match && modelPorts(r, d, w.ports, true) {
				return true
			}
		}
	}
	return false
}

func modelPorts(r Rule, d target, byDefault []PortRange, named bool) bool {
	if r.Protocol != Any && r.Protocol != d.proto {
		return false
	}
	inside := func(list []PortRange) bool {
		return d.proto != ICMP && slices.ContainsFunc(list, func(p PortRange) bool { return p.From <= d.port && d.port <= p.To })
	}
	if r.Action == Deny {
		return len(r.Ports) == 0 || inside(r.Ports)
	}
	if named && d.proto == UDP && d.port == 443 {
		return false
	}
	if len(r.Ports) > 0 {
		if r.Service != "" && r.Protocol == Any && d.proto == UDP {
			return false
		}
		return inside(r.Ports)
	}
	if !named {
		return true
	}
	if r.Protocol == ICMP {
		return true
	}
	return d.proto == TCP && inside(byDefault)
}

func modelPrivate(p netip.Prefix) bool {
	for _, s := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7"} {
		q := netip.MustParsePrefix(s)
		if q.Bits() <= p.Bits() && q.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

func model(layers []Layer, node []netip.Prefix, d target) bool {
	one := netip.PrefixFrom(d.addr, d.addr.BitLen())
	for _, n := range node {
		if n.Contains(d.addr) {
			return false
		}
	}
	for _, s := range hard {
		if s.prefix.Contains(d.addr) {
			return false
		}
	}
	for _, l := range layers {
		allowed := l.Policy.Mode == ModeOpen && !modelPrivate(one) && (d.proto == ICMP || d.port != 53 && d.port != 853)
		for _, r := range l.Policy.Rules {
			if !modelRule(r, d) {
				continue
			}
			if r.Action == Deny {
				return false
			}
			if modelPrivate(one) && (!r.Prefix.IsValid() || !modelPrivate(r.Prefix)) {
				continue
			}
			allowed = true
		}
		if !allowed {
			return false
		}
	}
	return true
}

// lookup is what the data plane does with the table.
func lookup(entries []Entry, d target) Verdict {
	best := -1
	for _, e := range entries {
		if e.Prefix.Contains(d.addr) {
			best = max(best, e.Prefix.Bits())
		}
	}
	var list []Opening
	for _, e := range entries {
		if e.Prefix.Contains(d.addr) && e.Prefix.Bits() == best {
			list = append(list, e.Opening)
		}
	}
	return verdictOf(list, d)
}

func verdictOf(list []Opening, d target) Verdict {
	port := d.port
	if d.proto == ICMP {
		port = 0
	}
	verdict, found := VerdictDeny, 0
	for _, o := range list {
		if (o.Protocol == Any || o.Protocol == d.proto) && o.From <= port && port <= o.To {
			verdict = o.Verdict
			found++
		}
	}
	if found > 1 {
		panic("openings overlap")
	}
	return verdict
}

var (
	someDomains = []string{"example.org", "*.example.org", "a.example.org", "*.a.example.org", "b.a.example.org", "example.net", "pypi.org", "*.org"}
	someNames   = []string{"example.org", "a.example.org", "b.a.example.org", "c.b.a.example.org", "example.net", "x.example.net", "pypi.org", "files.pythonhosted.org", "github.com"}
	somePrefix  = []string{"0.0.0.0/0", "203.0.113.0/24", "203.0.113.0/25", "203.0.113.7/32", "203.0.113.128/25", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "8.0.0.0/6", "::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1::7/128", "fd00:1::/32", "100.64.0.0/10"}
	someAddrs   = []string{"203.0.113.7", "203.0.113.8", "203.0.113.200", "198.51.100.1", "10.1.2.3", "10.1.2.4", "10.2.0.1", "8.8.8.8", "127.0.0.1", "169.254.169.254", "100.64.0.1", "2001:db8:1::7", "2001:db8:1::8", "2001:db8:2::1", "fd00:1::1", "fd00:2::1", "fd00:ec2::254", "fe80::1", "64:ff9b::808:808"}
	somePorts   = []uint16{1, 22, 53, 79, 80, 81, 443, 444, 8000, 8050, 65535}
)

func drawPolicy(t *rapid.T, label string) Policy {
	mode := rapid.SampledFrom([]Mode{ModeRules, ModeRules, ModeRules, ModeOpen, ModeNone}).Draw(t, label)
	p := Policy{Mode: mode}
	if mode == ModeNone {
		return p
	}
	for range rapid.IntRange(0, 8).Draw(t, "rules") {
		r := Rule{Action: rapid.SampledFrom([]Action{Allow, Allow, Deny}).Draw(t, "action")}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			r.Service = rapid.SampledFrom([]string{"pypi", "github", "apt"}).Draw(t, "service")
		case 1:
			r.Domain = rapid.SampledFrom(someDomains).Draw(t, "domain")
		default:
			r.Prefix = netip.MustParsePrefix(rapid.SampledFrom(somePrefix).Draw(t, "prefix"))
		}
		r.Protocol = rapid.SampledFrom([]Protocol{Any, Any, TCP, UDP, ICMP}).Draw(t, "protocol")
		if r.Protocol != ICMP {
			var list ports
			for range rapid.IntRange(0, 2).Draw(t, "ranges") {
				a, b := rapid.SampledFrom(somePorts).Draw(t, "from"), rapid.SampledFrom(somePorts).Draw(t, "to")
				list = append(list, PortRange{min(a, b), max(a, b)})
			}
			r.Ports = list.normal()
		}
		next := p
		next.Rules = append(slices.Clone(p.Rules), r)
		if _, err := next.normal(Builtin()); err == nil { // refused ones are tested elsewhere
			p = next
		}
	}
	return p
}

func TestAgreesWithTheModel(t *testing.T) {
	node := []netip.Prefix{netip.MustParsePrefix("203.0.113.200/32"), netip.MustParsePrefix("2001:db8:2::/64")}
	rapid.Check(t, func(t *rapid.T) {
		var layers []Layer
		for i := range rapid.IntRange(1, 3).Draw(t, "layers") {
			source := []Source{FromSpec, FromEnvironment, FromProject}[i]
			layers = append(layers, Layer{source, drawPolicy(t, string(source))})
		}
		p, err := Compiler{Node: node}.Compile(layers...)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Compiler{Node: node}.Compile(p.Layers...)
		if err != nil || again.Digest() != p.Digest() {
			t.Fatalf("compiling what was normalised gives another program: %v\n%s\n%s", err, p, again)
		}
		for _, l := range p.Layers {
			read, err := ParseTexts(Builtin(), l.Policy.Texts()...)
			if err != nil || !slices.EqualFunc(read.Rules, l.Policy.Rules, func(a, b Rule) bool { return a.String() == b.String() }) || read.Mode != l.Policy.Mode {
				t.Fatalf("%v is read as %v, %v", l.Policy.Texts(), read.Texts(), err)
			}
		}
		denies := slices.ContainsFunc(layers, func(l Layer) bool {
			return slices.ContainsFunc(l.Policy.Rules, func(r Rule) bool { return r.Action == Deny && !r.Prefix.IsValid() })
		})
		names := rapid.Permutation(someNames).Draw(t, "names")[:4]
		for _, text := range someAddrs {
			addr := netip.MustParseAddr(text)
			checked := denies && !modelPrivate(single(addr))
			for _, proto := range []Protocol{TCP, UDP, ICMP} {
				for _, port := range somePorts {
					d := target{"", addr, proto, port}
					want := VerdictDeny
					web := proto == TCP && (port == 80 || port == 443)
					if model(layers, node, d) {
						want = VerdictAllow
						if checked && web {
							want = VerdictCheck
						} else if checked && proto == UDP && port == 443 {
							want = VerdictDeny
						}
					}
					if got := lookup(p.Static, d); got != want {
						t.Fatalf("table: %+v is %v, should be %v:\n%s", d, got, want, p)
					}
					if e := p.explain(p.place("", addr), proto, port); e.Allowed != (want != VerdictDeny) || e.Check != (want == VerdictCheck) {
						t.Fatalf("explain %+v: %+v, should be %v:\n%s", d, e, want, p)
					}
					for _, name := range names {
						if port != 22 && port != 53 && port != 80 && port != 443 && port != 8050 {
							continue
						}
						checkNamed(t, p, layers, node, target{name, addr, proto, port}, want)
					}
				}
			}
		}
	})
}

// checkNamed compares what an answer opens, on top of the table, with the model.
func checkNamed(t *rapid.T, p *Program, layers []Layer, node []netip.Prefix, d target, static Verdict) {
	openings, _, ok := p.Open(d.name, d.addr)
	allowed := model(layers, node, d)
	web := d.proto == TCP && (d.port == 80 || d.port == 443)
	quic := d.proto == UDP && d.port == 443
	if allowed && !ok {
		t.Fatalf("open %+v: dropped, but allowed:\n%s", d, p)
	}
	got := verdictOf(openings, d)
	switch {
	case static != VerdictDeny && got != VerdictDeny:
		t.Fatalf("open %+v: repeats what the table says:\n%s", d, p)
	case static != VerdictDeny:
		// Open by its address; a denied name is caught by the check on web ports.
	case allowed && quic:
		if got != VerdictDeny {
			t.Fatalf("open %+v: UDP 443 is open:\n%s", d, p)
		}
	case allowed && web && got != VerdictCheck, allowed && !web && got != VerdictAllow, !allowed && got != VerdictDeny:
		t.Fatalf("open %+v: %v, allowed %v:\n%s", d, got, allowed, p)
	}
	e, err := p.Explain(fmt.Sprintf("%s@%s", d.name, d.addr), d.port, d.proto)
	if err != nil {
		t.Fatal(err)
	}
	want := allowed && !(quic && static == VerdictDeny)
	if e.Allowed != want {
		t.Fatalf("explain %+v: %+v, should be %v:\n%s", d, e, want, p)
	}
	if d.proto == TCP {
		if a, answered := p.Admit(d.name, d.addr, d.port); a.Allowed != allowed || a.Allowed && answered == (static != VerdictDeny) {
			t.Fatalf("admit %+v: %+v %v, allowed %v, static %v:\n%s", d, a, answered, allowed, static, p)
		}
	}
	if nd := p.Name(d.name); nd.Allowed && ok && !slices.ContainsFunc(nd.Openings, func(o Opening) bool { return o.Verdict != VerdictDeny }) {
		t.Fatalf("name %s resolves and opens nothing:\n%s", d.name, p)
	}
}

// What Parse accepts is written back in a form that means the same, and nothing makes it panic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"pypi", "*.example.org:443", "10.1.0.0/16:5432/tcp", "[2001:db8::1]:53/udp", "!a.b:1,2-3", "bücher.example", "[::/0]:*", "1.2.3.4/", "a/", "[", "!", ":", "x:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q is %+v, written %q, read again %+v, %v", s, r, r.String(), again, err)
		}
		p := Policy{Mode: ModeRules, Rules: []Rule{r}}
		if r.Service != "" {
			return
		}
		prog, err := Compile(Layer{FromSpec, p})
		if err != nil {
			t.Fatalf("%q is accepted alone and refused in a policy: %v", s, err)
		}
		if r.Action == Allow && r.Domain != "" && !prog.Name(strings.Replace(r.Domain, "*", "x", 1)).Allowed {
			t.Fatalf("%q does not allow its own name", s)
		}
	})
}
