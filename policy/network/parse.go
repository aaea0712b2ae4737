package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// Bounds of what users may write.
const (
	MaxRules      = 16384 // of a policy
	MaxPortRanges = 16    // of a rule
	maxText       = 512   // bytes of a rule
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("network rule %w: "+format, append([]any{sandbox.ErrInvalid}, args...)...)
}

// Parse reads one rule as users write it: a target, then optionally ports and a protocol; "!" in front denies.
//
//	pypi    *.example.org:443    10.1.0.0/16:5432/tcp    [2001:db8::1]:53/udp    example.org:80,8000-8100    !github
//
// A single label is a service, and is not looked up here (Catalog.Check does). Errors are sandbox.ErrInvalid and say
// what to write instead.
func Parse(text string) (Rule, error) {
	s := strings.TrimSpace(text)
	r := Rule{Action: Allow}
	if deny, ok := strings.CutPrefix(s, "!"); ok {
		r.Action, s = Deny, strings.TrimSpace(deny)
	}
	switch {
	case s == "":
		return Rule{}, invalid("%q is empty: write a service, a domain or an address", text)
	case len(s) > maxText:
		return Rule{}, invalid("%.40q... is %d bytes long, at most %d are accepted", text, len(s), maxText)
	case strings.Contains(s, "://"):
		return Rule{}, invalid("%q is a URL: write its host alone", text)
	case strings.ContainsAny(s, " \t\r\n\x00"):
		return Rule{}, invalid("%q contains blanks: give each rule apart", text)
	}
	s, err := r.cutProtocol(s)
	if err != nil {
		return Rule{}, err
	}
	target, ports, err := splitPorts(s)
	if err != nil {
		return Rule{}, err
	}
	if ports != nil {
		if r.Ports, err = parsePorts(*ports); err != nil {
			return Rule{}, err
		}
	}
	if err := r.setTarget(target); err != nil {
		return Rule{}, err
	}
	return r, r.check()
}

// cutProtocol takes a protocol off the end. What follows the last slash may be a prefix length instead.
func (r *Rule) cutProtocol(s string) (string, error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 || i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' {
		return s, nil
	}
	p, ok := ParseProtocol(s[i+1:])
	if !ok {
		return "", invalid("%q: unknown protocol %q: write tcp, udp, icmp or any (a rule has no path)", s, s[i+1:])
	}
	r.Protocol = p
	return s[:i], nil
}

// splitPorts takes the ports off; nil if there are none. IPv6 with ports stands in brackets.
func splitPorts(s string) (target string, ports *string, err error) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		inside, after, ok := strings.Cut(rest, "]")
		if !ok {
			return "", nil, invalid("%q: the bracket is not closed", s)
		}
		bits, list, hasPorts := strings.Cut(after, ":")
		if bits != "" && bits[0] != '/' {
			return "", nil, invalid("%q: after the bracket come /length or :ports", s)
		}
		if hasPorts {
			ports = &list
		}
		return inside + bits, ports, nil
	}
	if isAddress(s) {
		return s, nil, nil
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, nil, nil
	}
	if strings.Contains(s[:i], ":") {
		return "", nil, invalid("%q: write an IPv6 address with ports in brackets: [2001:db8::1]:443", s)
	}
	list := s[i+1:]
	return s[:i], &list, nil
}

func isAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(s)
	return err == nil
}

func parsePorts(list string) ([]PortRange, error) {
	var out []PortRange
	for one := range strings.SplitSeq(list, ",") {
		if one == "*" {
			out = append(out, allPorts)
			continue
		}
		first, last, isRange := strings.Cut(one, "-")
		from, err := parsePort(first)
		if err != nil {
			return nil, err
		}
		to := from
		if isRange {
			if to, err = parsePort(last); err != nil {
				return nil, err
			}
			if to < from {
				return nil, invalid("ports %q end before they begin: write %d-%d", one, to, from)
			}
		}
		out = append(out, PortRange{from, to})
	}
	out = ports(out).normal()
	if len(out) > MaxPortRanges {
		return nil, invalid("%d ranges of ports, at most %d are accepted in one rule", len(out), MaxPortRanges)
	}
	return out, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || s[0] == '+' {
		return 0, invalid("port %q: ports are numbers from 1 to 65535, ranges 80-90, or * for all", s)
	}
	if n == 0 {
		return 0, invalid("port 0 does not exist: ports are 1 to 65535, * is all of them")
	}
	return uint16(n), nil
}

func (r *Rule) setTarget(s string) error {
	switch {
	case s == "":
		return invalid("no target before the ports: write a service, a domain or an address")
	case s == "*":
		return invalid("* alone is everything: use the policy \"open\" for the internet")
	case s == "open" || s == "none":
		return invalid("%q is a whole policy: it takes no ports, and no \"!\"", s)
	}
	if strings.Contains(s, "/") {
		return r.setPrefix(s)
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return r.setPrefix(s + "/" + strconv.Itoa(a.BitLen()))
	}
	if strings.Contains(s, ":") {
		return invalid("%q is neither an IPv6 address nor a domain", s)
	}
	if !strings.Contains(strings.TrimSuffix(s, "."), ".") && isASCII(s) {
		name := strings.ToLower(s)
		if !validService(name) {
			return invalid("%q is neither a service (letters, digits, dashes) nor a domain", s)
		}
		r.Service = name
		return nil
	}
	d, err := NormalizeDomain(s)
	r.Domain = d
	return err
}

func (r *Rule) setPrefix(s string) error {
	if strings.Contains(s, "%") {
		return invalid("%q: addresses have no zone here", s)
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return invalid("%q is not an address range: write an address, a slash and a length, like 10.1.0.0/16", s)
	}
	if p.Addr().Is4In6() {
		plain := p.Addr().Unmap()
		if p.Bits() < 96 {
			return invalid("%q mixes IPv4 and IPv6: write them apart", s)
		}
		return invalid("%q is an IPv4 address inside IPv6: write %s", s, netip.PrefixFrom(plain, p.Bits()-96))
	}
	if m := p.Masked(); m != p {
		return invalid("%s has bits beyond its length: write %s for the range, or %s for the one address", p, m, p.Addr())
	}
	r.Prefix = p
	return nil
}

// check refuses what is well formed and can never work, so that nobody believes it does.
func (r Rule) check() error {
	set := 0
	for _, is := range []bool{r.Service != "", r.Domain != "", r.Prefix.IsValid()} {
		if is {
			set++
		}
	}
	if set != 1 {
		return invalid("has %d targets: name one service, domain or address range", set)
	}
	for i, p := range r.Ports {
		if p.From == 0 || p.To < p.From || i > 0 && p.From <= r.Ports[i-1].To {
			return invalid("%s: ports must be from 1 to 65535, sorted, and must not overlap", r)
		}
	}
	if len(r.Ports) > MaxPortRanges {
		return invalid("%s: at most %d ranges of ports", r, MaxPortRanges)
	}
	if r.Protocol > ICMP || r.Action > Allow {
		return invalid("%s: unknown action or protocol", r)
	}
	if r.Protocol == ICMP && len(r.Ports) > 0 {
		return invalid("%s: icmp has no ports", r)
	}
	if r.Prefix.IsValid() && (r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6()) {
		return invalid("%s: the range is not normalised", r)
	}
	if r.Action == Deny {
		return nil
	}
	if r.Protocol == UDP && !r.Prefix.IsValid() {
		if len(r.Ports) == 0 {
			return invalid("%s: say which UDP ports, like %s:123/udp", r, r.Target())
		}
		if slices.Equal(r.Ports, []PortRange{{443, 443}}) {
			return invalid("%s: UDP 443 stays closed for names: QUIC hides which name is spoken to; clients fall back to TCP", r)
		}
	}
	if r.Prefix.IsValid() {
		if what, ok := alwaysDenied(r.Prefix); ok {
			return invalid("%s: %s is always denied, no rule can allow it", r, what)
		}
	}
	return nil
}

// Wish is a rule as the API and the SDKs carry it: {"npm": false, "pypi": true}.
type Wish struct {
	Target string
	Allow  bool
}

// ParsePolicy makes a policy of wishes. "none" and "open" are whole policies; open may have rules beside it. A wish
// with "!" in front and Allow denies. What is said twice is taken once; what is both allowed and denied is refused.
func ParsePolicy(c *Catalog, wishes ...Wish) (Policy, error) {
	if len(wishes) > MaxRules {
		return Policy{}, invalid("%d rules, at most %d are accepted", len(wishes), MaxRules)
	}
	p := Policy{Mode: ModeNone}
	none := false
	for _, w := range wishes {
		switch mode := strings.ToLower(strings.TrimSpace(w.Target)); mode {
		case "none", "open":
			if !w.Allow {
				return Policy{}, invalid("%q cannot be denied: leave it out, or use \"none\" to deny everything", mode)
			}
			if mode == "open" {
				p.Mode = ModeOpen
			} else {
				none = true
			}
			continue
		}
		r, err := Parse(w.Target)
		if err != nil {
			return Policy{}, err
		}
		if !w.Allow {
			if r.Action == Deny {
				return Policy{}, invalid("%q is denied twice, which could mean allowed: leave \"!\" out", w.Target)
			}
			r.Action = Deny
		}
		p.Rules = append(p.Rules, r)
	}
	if none && (p.Mode == ModeOpen || len(p.Rules) > 0) {
		return Policy{}, invalid("\"none\" denies everything and stands alone: leave it or the other rules out")
	}
	if len(p.Rules) > 0 && p.Mode == ModeNone {
		p.Mode = ModeRules
	}
	return p.normal(c)
}

// ParseTexts is ParsePolicy of what stands on a command line; "!" denies.
func ParseTexts(c *Catalog, texts ...string) (Policy, error) {
	wishes := make([]Wish, len(texts))
	for i, t := range texts {
		wishes[i] = Wish{t, true}
	}
	return ParsePolicy(c, wishes...)
}

// normal checks all rules again (they may not come from Parse), and drops repetitions.
func (p Policy) normal(c *Catalog) (Policy, error) {
	if len(p.Rules) > MaxRules {
		return Policy{}, invalid("%d rules, at most %d are accepted", len(p.Rules), MaxRules)
	}
	if p.Mode > ModeOpen || p.Mode == ModeNone && len(p.Rules) > 0 {
		return Policy{}, invalid("a policy of mode %s has no rules", p.Mode)
	}
	seen := make(map[string]Action, len(p.Rules))
	var out []Rule
	for _, r := range p.Rules {
		if err := r.check(); err != nil {
			return Policy{}, err
		}
		if err := c.Check(r); err != nil {
			return Policy{}, err
		}
		if r.Domain != "" {
			if d, err := NormalizeDomain(r.Domain); err != nil {
				return Policy{}, err
			} else if d != r.Domain {
				return Policy{}, invalid("domain %q is not normalised: write %q", r.Domain, d)
			}
		}
		if p.Mode == ModeOpen && r.Action == Deny && !r.Prefix.IsValid() && (len(r.Ports) > 0 || r.Protocol != Any) {
			return Policy{}, invalid("%s: beside \"open\" a name is denied on all ports: leave ports and protocol out", r)
		}
		key := strings.TrimPrefix(r.String(), "!")
		action, again := seen[key]
		if again && action != r.Action {
			return Policy{}, invalid("%s is both allowed and denied: keep one of them", key)
		}
		seen[key] = r.Action
		if !again {
			out = append(out, r)
		}
	}
	p.Rules = out
	if p.Mode == ModeRules && len(out) == 0 {
		p.Mode = ModeNone
	}
	return p, nil
}
