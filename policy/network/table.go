package network

import (
	"net/netip"
	"slices"
)

// node is a prefix on the way from all addresses to a longer prefix: what holds for the addresses that it contains
// and no longer prefix does.
type node struct {
	prefix  netip.Prefix
	hard    bool
	private bool
	sums    []sums // by layer
	result  []Opening
}

type sums struct{ allow, deny reach }

// table computes Static: all prefixes that anyone names, from short to long, each inheriting from the one that
// contains it; those that change nothing are left out.
func (p *Program) table() ([]Entry, error) {
	var out []Entry
	var stack []node
	for _, prefix := range p.mentioned() {
		for len(stack) > 0 && !contains(stack[len(stack)-1].prefix, prefix) {
			stack = stack[:len(stack)-1]
		}
		n := node{prefix: prefix, sums: make([]sums, len(p.layers))}
		if len(stack) > 0 {
			above := stack[len(stack)-1]
			n.hard, n.private = above.hard, above.private
			copy(n.sums, above.sums)
		} else {
			for i, l := range p.layers {
				if l.mode == ModeOpen {
					n.sums[i].allow = internet
				}
			}
		}
		if _, ok := p.never(prefix); ok {
			n.hard = true
		}
		_, isPriv := isPrivate(prefix)
		entering := isPriv && !n.private
		n.private = isPriv
		for i, l := range p.layers {
			if entering {
				n.sums[i].allow = reach{}
			}
			allow, deny := l.sum(l.prefixes[prefix])
			n.sums[i].allow = n.sums[i].allow.union(allow)
			n.sums[i].deny = n.sums[i].deny.union(deny)
		}
		n.result = p.openings(n)
		if len(n.result) > MaxEntries {
			return nil, invalid("%s: rules give it %d separate ranges of ports, at most %d are possible", prefix, len(n.result), MaxEntries)
		}
		if len(stack) == 0 || !slices.Equal(stack[len(stack)-1].result, n.result) {
			for _, o := range n.result {
				out = append(out, Entry{prefix, o})
			}
		}
		stack = append(stack, n)
	}
	return out, nil
}

// mentioned are all prefixes that matter, each before those that it contains.
func (p *Program) mentioned() []netip.Prefix {
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, s := range hard {
		all = append(all, s.prefix)
	}
	for _, s := range private {
		all = append(all, s.prefix)
	}
	all = append(all, p.node...)
	for _, l := range p.layers {
		for q := range l.prefixes {
			all = append(all, q)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(all)
}

func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// never says whether a prefix lies wholly in what no rule opens, and why.
func (p *Program) never(q netip.Prefix) (string, bool) {
	for _, n := range p.node {
		if contains(n, q) {
			return "the node", true
		}
	}
	return alwaysDenied(q)
}

// openings is what holds at a node of the table.
func (p *Program) openings(n node) []Opening {
	r := everything
	for _, s := range n.sums {
		r = r.and(s.allow.minus(s.deny))
	}
	if n.hard {
		r = reach{}
	}
	if r.empty() {
		return []Opening{{Any, 0, 65535, VerdictDeny}}
	}
	return p.verdicts(r, p.named && !n.private)
}

// verdicts writes a reach as openings; with check, web ports are checked and QUIC is closed.
func (p *Program) verdicts(r reach, check bool) []Opening {
	var out []Opening
	if check {
		r.udp = r.udp.minus(quic)
		for _, t := range r.tcp.minus(checked) {
			out = append(out, Opening{TCP, t.From, t.To, VerdictAllow})
		}
		for _, t := range r.tcp.and(checked) {
			out = append(out, Opening{TCP, t.From, t.To, VerdictCheck})
		}
		slices.SortFunc(out, func(a, b Opening) int { return int(a.From) - int(b.From) })
	} else {
		if slices.Equal(r.tcp, everything.tcp) && slices.Equal(r.udp, everything.udp) && r.icmp {
			return []Opening{{Any, 0, 65535, VerdictAllow}}
		}
		for _, t := range r.tcp {
			out = append(out, Opening{TCP, t.From, t.To, VerdictAllow})
		}
	}
	for _, t := range r.udp {
		out = append(out, Opening{UDP, t.From, t.To, VerdictAllow})
	}
	if r.icmp {
		out = append(out, Opening{ICMP, 0, 65535, VerdictAllow})
	}
	return out
}
