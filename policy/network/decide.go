package network

import "net/netip"

// place is a destination as the layers see it.
type place struct {
	name   string // "" if unknown
	addr   netip.Addr
	hard   string // why no rule opens the address, "" if rules may
	inside bool   // the address is private
	what   string // of a private address
}

func (p *Program) place(name string, addr netip.Addr) place {
	at := place{name: name, addr: addr.Unmap()}
	if at.addr.IsValid() {
		if addr.Is4In6() || addr.Zone() != "" {
			at.hard = "IPv4 inside IPv6, or an address with a zone"
			return at
		}
		if why, ok := p.never(single(at.addr)); ok {
			at.hard = why
		}
		at.what, at.inside = isPrivate(single(at.addr))
	}
	return at
}

// view is what one layer says about a place.
type view struct {
	byName, byAddr     []int32
	allowName, allow   reach // by name; by address, open included
	denyName, denyAddr reach
	explicit, exact    bool // a rule allows the name; not only by a wildcard
}

func (l *layer) view(at place) view {
	var v view
	if at.name != "" {
		v.byName, v.exact = l.byName(at.name)
		v.allowName, v.denyName = l.sum(v.byName)
		v.explicit = !v.allowName.empty()
	}
	if at.addr.IsValid() {
		v.byAddr = l.byAddr(at.addr, at.inside)
		v.allow, v.denyAddr = l.sum(v.byAddr)
		if at.inside {
			// A private address is opened by the rule that names its range, never by a name.
			v.allowName = reach{}
		}
	} else {
		v.allow = l.allRanges
	}
	if l.mode == ModeOpen && !at.inside {
		v.allow = v.allow.union(internet)
	}
	return v
}

// total is what a layer opens at a place.
func (v view) total() reach {
	return v.allowName.union(v.allow).minus(v.denyName).minus(v.denyAddr)
}

// static is what is open at an address whatever name it is reached by; check says whether web ports are checked.
func (p *Program) static(at place) (r reach, check bool) {
	if at.hard != "" || !at.addr.IsValid() {
		return reach{}, false
	}
	r = everything
	nameless := at
	nameless.name = ""
	for _, l := range p.layers {
		r = r.and(l.view(nameless).total())
	}
	check = p.named && !at.inside
	if check {
		r.udp = r.udp.minus(quic)
	}
	return r, check
}

// total is what is open at a place under its name.
func (p *Program) total(at place) reach {
	if at.hard != "" {
		return reach{}
	}
	r := everything
	for _, l := range p.layers {
		r = r.and(l.view(at).total())
	}
	return r
}

// Open says what becomes reachable at an address that was answered for a name, beyond what Static opens there
// already. ok is false, and why says why, if nothing at all is reachable there by that name: the answer is to be
// dropped (an allowed name that points to the node, a private range, ...). What the name opens on TCP 80 and 443 is
// checked; UDP 443 stays closed. Openings beyond MaxEntries stay closed.
func (p *Program) Open(name string, addr netip.Addr) (openings []Opening, why string, ok bool) {
	n, valid := asked(name)
	if !valid {
		return nil, "not a name of a host", false
	}
	at := p.place(n, addr)
	if at.hard != "" {
		return nil, "the address is " + at.hard + ", which is always denied", false
	}
	r := p.total(at)
	if r.empty() {
		if at.inside {
			return nil, "the address is " + at.what + ", and no rule names its range", false
		}
		return nil, "no rule opens the address for this name", false
	}
	static, _ := p.static(at)
	openings = p.verdicts(r.minus(static), true)
	return openings[:min(len(openings), MaxEntries)], "", true
}

// Admit is the proxy's question: may a connection with this SNI or Host go to this address and TCP port? With
// answered, it may only if the address was answered for the name; otherwise the address is open in its own right.
// name may be an address literal (Host: 203.0.113.7), which must be the destination itself.
func (p *Program) Admit(name string, addr netip.Addr, port uint16) (d Decision, answered bool) {
	if literal, err := netip.ParseAddr(name); err == nil {
		if literal.Unmap() != addr.Unmap() {
			return Decision{Source: FromAlways, Why: "the connection goes to " + addr.String() + ", and not to the address that it names"}, false
		}
		return p.explain(p.place("", addr), TCP, port), false
	}
	n, ok := asked(name)
	if !ok {
		return Decision{Source: FromAlways, Why: "the connection carries no valid name"}, false
	}
	at := p.place(n, addr)
	d = p.explain(at, TCP, port)
	static, _ := p.static(at)
	return d, !static.has(TCP, port)
}

// NameDecision is what the resolver acts by.
type NameDecision struct {
	Decision
	// Openings are what the name opens at most; Open says what it opens at one address.
	Openings []Opening
	// Wild says that the name was allowed by a wildcard or by "open" alone: whoever asks chose part of it, and can
	// put data there.
	Wild bool
	// Check says that TCP 80 and 443 pass the check of SNI or Host; UDP 443 is closed then.
	Check bool
}

// Name says whether a name may be resolved. A name resolves if every layer could allow some destination under it, and
// it is named by a rule or all layers are open: a policy of address ranges alone resolves nothing.
func (p *Program) Name(qname string) NameDecision {
	n, ok := asked(qname)
	if !ok {
		return NameDecision{Decision: Decision{Source: FromAlways, Why: "not a name of a host"}}
	}
	at := place{name: n}
	r, open, explicit, exact := everything, true, false, false
	for _, l := range p.layers {
		v := l.view(at)
		layer := v.total()
		if layer.empty() {
			return NameDecision{Decision: l.refuse(at, v, Any, 0)}
		}
		r = r.and(layer)
		open = open && l.mode == ModeOpen
		explicit = explicit || v.explicit
		exact = exact || v.exact
	}
	switch {
	case r.empty():
		return NameDecision{Decision: Decision{Source: p.layers[len(p.layers)-1].source, Why: "the policies allow " + n + " on different ports only"}}
	case !explicit && !open:
		return NameDecision{Decision: p.unnamed(n)}
	}
	d := NameDecision{Wild: !exact, Check: !open || p.named}
	d.Openings = p.verdicts(r, d.Check)
	d.Decision = p.allowed(at, Any, 0)
	return d
}

// unnamed describes why a name that could lead somewhere allowed does not resolve: no rule names it.
func (p *Program) unnamed(name string) Decision {
	for _, l := range p.layers {
		switch {
		case l.mode == ModeOpen:
		case len(l.exact)+len(l.below) == 0:
			return Decision{Source: l.source, Why: "no rule names " + name + "; address ranges alone resolve no names"}
		default:
			return Decision{Source: l.source, Why: "no rule allows " + name}
		}
	}
	return Decision{Source: p.layers[0].source, Why: "no rule allows " + name}
}
