package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Decision is whether a destination may be reached, and because of what.
type Decision struct {
	Allowed bool
	// Rule decided, as its user wrote it; empty if none did (nothing allows it, it is open, it is always denied).
	Rule string
	// Source is whose policy decided.
	Source Source
	// Why is a sentence for people.
	Why string
	// Check says that the connection passes the check of SNI or Host.
	Check bool
}

func (d Decision) String() string {
	verdict := "denied"
	if d.Allowed {
		verdict = "allowed"
	}
	s := fmt.Sprintf("%s by %s", verdict, d.Source)
	if d.Rule != "" {
		s += " (" + d.Rule + ")"
	}
	return s + ": " + d.Why
}

// Explain says what happens to a destination: a name, an address, or "name@address" for an address that was answered
// for a name. A name without an address is taken at a public address of its own.
func (p *Program) Explain(host string, port uint16, proto Protocol) (Decision, error) {
	if proto == Any || proto > ICMP {
		return Decision{}, invalid("explain %s: name one protocol: tcp, udp or icmp", host)
	}
	if proto != ICMP && port == 0 {
		return Decision{}, invalid("explain %s: port 0 does not exist", host)
	}
	name, literal, both := strings.Cut(host, "@")
	if !both {
		if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			return p.explain(p.place("", a), proto, port), nil
		}
	}
	n, err := NormalizeDomain(name)
	if err != nil {
		if n, err = name, nil; !validService(name) { // a single label resolves in private networks only
			return Decision{}, invalid("explain %q: neither an address nor a name", host)
		}
	}
	if strings.HasPrefix(n, "*.") {
		return Decision{}, invalid("explain %q: ask for one name", host)
	}
	if !both {
		if d := p.Name(n); !d.Allowed {
			if domain := p.domainOf(n); domain != "" {
				d.Why += fmt.Sprintf("; as a service it stands for other names: ask for one of those, like %s", domain)
			}
			return d.Decision, nil
		}
		return p.explain(place{name: n}, proto, port), nil
	}
	a, err := netip.ParseAddr(strings.Trim(literal, "[]"))
	if err != nil {
		return Decision{}, invalid("explain %q: %q is no address", host, literal)
	}
	return p.explain(p.place(n, a), proto, port), nil
}

// domainOf is a domain of a service that a rule names; empty if none does.
func (p *Program) domainOf(service string) string {
	var all []string
	for _, l := range p.layers {
		for domain, terms := range l.exact {
			if slices.ContainsFunc(terms, func(t int32) bool { return l.rules[l.terms[t].rule].Service == service }) {
				all = append(all, domain)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return slices.Min(all)
}

// explain asks each layer in turn.
func (p *Program) explain(at place, proto Protocol, port uint16) Decision {
	if at.hard != "" {
		return Decision{Source: FromAlways, Why: fmt.Sprintf("%s is %s; no rule opens it", at.addr, at.hard)}
	}
	for _, l := range p.layers {
		if v := l.view(at); !v.total().has(proto, port) {
			return l.refuse(at, v, proto, port)
		}
	}
	static, check := p.static(at)
	byAddress := static.has(proto, port)
	if proto == UDP && port == 443 && !byAddress && !p.openToAll(at) {
		return Decision{Source: FromAlways, Why: noQUIC}
	}
	d := p.allowed(at, proto, port)
	if proto == TCP && checked.has(port) && (check || !byAddress && !p.openToAll(at)) {
		d.Check = true
		d.Why += "; its SNI or Host is checked"
	}
	return d
}

// openToAll says that a name without an address needs no rule of its own: all layers are open and deny no name.
func (p *Program) openToAll(at place) bool {
	if at.addr.IsValid() || p.named {
		return false
	}
	for _, l := range p.layers {
		if l.mode != ModeOpen {
			return false
		}
	}
	return true
}

// allowed describes why a place is open: by the first layer's rule that names it, else because it is the internet.
func (p *Program) allowed(at place, proto Protocol, port uint16) Decision {
	for _, l := range p.layers {
		v := l.view(at)
		if at.inside {
			v.byName = nil
		}
		for _, terms := range [][]int32{v.byName, v.byAddr} {
			if r, ok := l.ruleFor(terms, true, proto, port); ok {
				return Decision{Allowed: true, Rule: r.String(), Source: l.source, Why: describe(at, r, proto, port)}
			}
		}
	}
	return Decision{Allowed: true, Rule: "open", Source: p.layers[0].source, Why: destination(at, proto, port) + " is part of the internet"}
}

// refuse describes why a layer does not open a place.
func (l *layer) refuse(at place, v view, proto Protocol, port uint16) Decision {
	for _, terms := range [][]int32{v.byName, v.byAddr} {
		if r, ok := l.ruleFor(terms, false, proto, port); ok {
			return Decision{Rule: r.String(), Source: l.source, Why: describe(at, r, proto, port)}
		}
	}
	d := Decision{Source: l.source}
	r, named := l.ruleFor(slices.Concat(v.byName, v.byAddr), true, Any, 0)
	switch {
	case l.mode == ModeNone:
		d.Why = "the policy is none"
	case named && proto == UDP && port == 443 && !r.Prefix.IsValid():
		d.Rule, d.Why = r.String(), noQUIC
	case l.mode == ModeOpen && !at.inside && (proto == TCP || proto == UDP) && resolvers.has(port):
		d.Why = "names resolve through the node alone: \"open\" leaves out ports 53 and 853, a rule for the address can add them"
	case named && !v.total().empty():
		d.Rule = r.String()
		d.Why = fmt.Sprintf("the rules open only %s there", v.total())
	case at.inside:
		d.Why = fmt.Sprintf("%s is %s; a rule must name its range", at.addr, at.what)
	default:
		d.Why = "no rule allows " + destination(at, proto, port)
	}
	return d
}

const noQUIC = "UDP 443 is closed where names decide: QUIC hides which name is spoken to; TCP 443 is tried next"

func describe(at place, r Rule, proto Protocol, port uint16) string {
	s := fmt.Sprintf("%s %s", map[Action]string{Allow: "allows", Deny: "denies"}[r.Action], destination(at, proto, port))
	if r.Service != "" {
		s += ", which is part of " + r.Service
	}
	return "the rule " + s
}

func destination(at place, proto Protocol, port uint16) string {
	s := at.name
	if at.addr.IsValid() {
		if s != "" {
			s += " at "
		}
		s += at.addr.String()
	}
	switch proto {
	case TCP, UDP:
		return fmt.Sprintf("%s on %s %d", s, proto, port)
	case ICMP:
		return s + " by icmp"
	}
	return s
}
