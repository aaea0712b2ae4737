package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Verdict is what the data plane does with a packet of a new flow.
type Verdict uint8

// The verdicts. The zero value denies.
const (
	VerdictDeny Verdict = iota
	VerdictAllow
	// VerdictCheck hands a TCP connection to the node's proxy, which lets it through if its SNI or Host is allowed.
	VerdictCheck
)

func (v Verdict) String() string {
	switch v {
	case VerdictAllow:
		return "allow"
	case VerdictCheck:
		return "check"
	}
	return "deny"
}

// Opening is a range of ports of one protocol with a verdict. ICMP and Any have ports 0 to 65535.
type Opening struct {
	Protocol Protocol
	From, To uint16
	Verdict  Verdict
}

func (o Opening) String() string {
	if o.Protocol == ICMP || o.Protocol == Any {
		return o.Protocol.String() + " " + o.Verdict.String()
	}
	return fmt.Sprintf("%s %s %s", o.Protocol, PortRange{o.From, o.To}, o.Verdict)
}

// Entry is an opening of a range of addresses.
type Entry struct {
	Prefix netip.Prefix
	Opening
}

// Program is a compiled policy: what the data plane, the resolver and the proxy act by. It is made by Compile from
// values alone and does not change; the same policies give the same program, and String and Digest compare them.
// Methods may be called by many at once.
type Program struct {
	// Static is the table by address, sorted by prefix. The longest prefix that contains an address decides alone:
	// entries of one prefix do not overlap, and what they do not name is denied. A prefix where all is denied has
	// one entry that says so. Both families have an entry for all of their addresses.
	Static []Entry
	// Limits are the least of the layers'.
	Limits Limits
	// Layers are the policies that it was made of, normalised.
	Layers []Layer

	layers []*layer
	node   []netip.Prefix
	named  bool // some layer denies names: web ports are checked even where addresses are open
}

// MaxEntries is how many entries a prefix of Static, or the openings of one address, have at most.
const MaxEntries = 64

// Compiler makes programs on one node.
type Compiler struct {
	// Catalog holds the services; nil is Builtin.
	Catalog *Catalog
	// Node are the addresses of the node, its platform and its sandboxes: no rule opens them.
	Node []netip.Prefix
}

// Compile makes the program of the policies that are present. A destination must be allowed by each of them; without
// any, everything is denied. The order (the spec first, by custom) decides only which of several is named as a reason.
func (c Compiler) Compile(layers ...Layer) (*Program, error) {
	if c.Catalog == nil {
		c.Catalog = Builtin()
	}
	if len(layers) == 0 {
		layers = []Layer{{Source: FromSpec}}
	}
	p := &Program{}
	for _, n := range c.Node {
		p.node = append(p.node, n.Masked())
	}
	for _, in := range layers {
		l, err := newLayer(c.Catalog, in)
		if err != nil {
			return nil, fmt.Errorf("policy of the %s: %w", in.Source, err)
		}
		p.layers = append(p.layers, l)
		p.named = p.named || l.deniesName
		limits := in.Policy.Limits
		p.Layers = append(p.Layers, Layer{in.Source, Policy{l.mode, l.rules, limits}})
		p.Limits = p.Limits.Least(limits)
	}
	var err error
	p.Static, err = p.table()
	return p, err
}

// Compile is Compiler.Compile with the built-in services and no addresses of a node.
func Compile(layers ...Layer) (*Program, error) { return Compiler{}.Compile(layers...) }

// least is the lesser of two limits; zero is none.
func least[T uint32 | uint64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// String is the program as text, for people and golden tests.
func (p *Program) String() string {
	var b strings.Builder
	for _, l := range p.Layers {
		fmt.Fprintf(&b, "%s: %s\n", l.Source, strings.Join(l.Policy.Texts(), " "))
	}
	if p.Limits != (Limits{}) {
		fmt.Fprintf(&b, "limits: bandwidth %d connections %d\n", p.Limits.Bandwidth, p.Limits.Connections)
	}
	for _, e := range p.Static {
		fmt.Fprintf(&b, "%s %s\n", e.Prefix, e.Opening)
	}
	return b.String()
}

// Digest names the program's content, the node's addresses and the services' domains included.
func (p *Program) Digest() string {
	h := sha256.New()
	fmt.Fprintln(h, p.String(), p.node)
	for _, l := range p.layers {
		var keys []string
		for k, terms := range l.exact {
			keys = append(keys, fmt.Sprintf("%s %v", k, l.describe(terms)))
		}
		for k, terms := range l.below {
			keys = append(keys, fmt.Sprintf("*.%s %v", k, l.describe(terms)))
		}
		slices.Sort(keys)
		fmt.Fprintln(h, keys)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (l *layer) describe(terms []int32) []term {
	var out []term
	for _, t := range terms {
		out = append(out, l.terms[t])
	}
	return out
}
