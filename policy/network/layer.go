package network

import (
	"net/netip"
	"slices"
	"strings"
)

// Source says who a policy, and thus a decision, is from.
type Source string

// The sources of policies, and of what holds whatever policies say. Others name whose of a kind: "project research".
const (
	FromSpec        Source = "spec"
	FromEnvironment Source = "environment"
	FromProject     Source = "project"
	FromAlways      Source = "always"
)

// Layer is one party's policy.
type Layer struct {
	Source Source
	Policy Policy
}

// layer is a Layer, indexed. It is read by many at once.
type layer struct {
	source Source
	mode   Mode
	rules  []Rule // as given; terms refer to them

	terms    []term
	exact    map[string][]int32 // domain -> terms
	below    map[string][]int32 // "example.org" -> terms of "*.example.org"
	prefixes map[netip.Prefix][]int32
	bits     [2][]int // the lengths that prefixes have, longest first; IPv4, IPv6

	allRanges  reach // what allow rules for ranges open anywhere
	deniesName bool
}

// term is a rule, or one domain of a rule's service.
type term struct {
	rule  int32
	allow bool
	reach reach
}

func newLayer(c *Catalog, l Layer) (*layer, error) {
	p, err := l.Policy.normal(c)
	if err != nil {
		return nil, err
	}
	out := &layer{
		source: l.Source, mode: p.Mode, rules: p.Rules,
		exact: map[string][]int32{}, below: map[string][]int32{}, prefixes: map[netip.Prefix][]int32{},
	}
	for i, r := range p.Rules {
		switch {
		case r.Service != "":
			s, _ := c.Get(r.Service)
			for _, part := range s.parts {
				for _, d := range part.domains {
					out.add(i, r, d, r.reach(part.ports))
				}
			}
		case r.Domain != "":
			out.add(i, r, r.Domain, r.reach(nil))
		default:
			t := term{int32(i), r.Action == Allow, r.reach(nil)}
			out.prefixes[r.Prefix] = append(out.prefixes[r.Prefix], int32(len(out.terms)))
			out.terms = append(out.terms, t)
			if t.allow {
				out.allRanges = out.allRanges.union(t.reach)
			}
		}
	}
	for p := range out.prefixes {
		f := family(p.Addr())
		if !slices.Contains(out.bits[f], p.Bits()) {
			out.bits[f] = append(out.bits[f], p.Bits())
		}
	}
	for f := range out.bits {
		slices.Sort(out.bits[f])
		slices.Reverse(out.bits[f])
	}
	return out, nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (l *layer) add(rule int, r Rule, domain string, q reach) {
	index, key := l.exact, domain
	if suffix, ok := strings.CutPrefix(domain, "*."); ok {
		index, key = l.below, suffix
	}
	index[key] = append(index[key], int32(len(l.terms)))
	l.terms = append(l.terms, term{int32(rule), r.Action == Allow, q})
	if r.Action == Deny {
		l.deniesName = true
	}
}

// byName finds the terms that match a name (as asked makes it), in as many look-ups as it has labels. exact says that
// a rule allows the name itself, and not only by a wildcard.
func (l *layer) byName(name string) (terms []int32, exact bool) {
	if len(l.exact)+len(l.below) == 0 {
		return nil, false
	}
	for _, t := range l.exact[name] {
		terms = append(terms, t)
		exact = exact || l.terms[t].allow
	}
	for {
		_, parent, ok := strings.Cut(name, ".")
		if !ok {
			return terms, exact
		}
		name = parent
		terms = append(terms, l.below[name]...)
	}
}

// byAddr finds the terms that match an address. For a private address, rules that allow more than a part of its
// private range do not count.
func (l *layer) byAddr(a netip.Addr, inside bool) (terms []int32) {
	for _, bits := range l.bits[family(a)] {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		found := l.prefixes[p]
		if _, ok := isPrivate(p); inside && !ok {
			for _, t := range found {
				if !l.terms[t].allow {
					terms = append(terms, t)
				}
			}
			continue
		}
		terms = append(terms, found...)
	}
	return terms
}

// sum is what terms allow and deny.
func (l *layer) sum(terms []int32) (allow, deny reach) {
	for _, i := range terms {
		if t := l.terms[i]; t.allow {
			allow = allow.union(t.reach)
		} else {
			deny = deny.union(t.reach)
		}
	}
	return allow, deny
}

// ruleFor finds the first rule among terms, in the order that the user gave them, that allows or denies a
// destination; with protocol Any, the first at all.
func (l *layer) ruleFor(terms []int32, allow bool, p Protocol, port uint16) (Rule, bool) {
	best := int32(-1)
	for _, i := range terms {
		t := l.terms[i]
		if t.allow == allow && (p == Any || t.reach.has(p, port)) && (best < 0 || t.rule < best) {
			best = t.rule
		}
	}
	if best < 0 {
		return Rule{}, false
	}
	return l.rules[best], true
}
