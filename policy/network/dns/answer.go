package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

// openTimeout bounds the wait for the data plane.
const openTimeout = 3 * time.Second

// maxStale is how often a question is decided anew because the policy changed while it was worked on.
const maxStale = 3

// localTTL, in seconds, is of names that the node answers itself, and of refusals: policies change while sandboxes run.
const localTTL = 1

// answer makes the answer to a question; nil sends none.
func (s *Server) answer(ctx context.Context, src netip.Addr, q *miekg.Msg) *miekg.Msg {
	if len(q.Question) != 1 || q.Response || q.Opcode != miekg.OpcodeQuery {
		return reply(q, miekg.RcodeFormatError)
	}
	if o := q.IsEdns0(); o != nil && o.Version() != 0 {
		return reply(q, miekg.RcodeBadVers)
	}
	if q.Question[0].Qclass != miekg.ClassINET {
		return reply(q, miekg.RcodeRefused)
	}
	var err error
	for range maxStale {
		c, ok := s.cfg.Identify(src)
		if !ok || c.Program == nil {
			s.unknown.Add(1)
			return reply(q, miekg.RcodeRefused)
		}
		state := s.clients.get(c.Key)
		if !state.allow(s.cfg.Now()) {
			return s.limit(c, state, q, "more than its rate of questions")
		}
		if !state.enter() {
			return s.limit(c, state, q, "too many questions at once")
		}
		var m *miekg.Msg
		m, err = s.work(ctx, c, state, q)
		state.leave()
		if !errors.Is(err, ErrStale) {
			return m
		}
	}
	s.failed.Add(1)
	return failure(q, miekg.ExtendedErrorCodeOther, "the policy keeps changing")
}

// work answers a sandbox's question. The error is ErrStale alone.
func (s *Server) work(ctx context.Context, c Client, state *client, q *miekg.Msg) (*miekg.Msg, error) {
	select {
	case s.flights <- struct{}{}:
		defer func() { <-s.flights }()
	default:
		return s.limit(c, state, q, "the node has too many questions at once"), nil
	}
	question := q.Question[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name, "."))
	if m, ok := s.local(c, name, q); ok {
		s.answered.Add(1)
		return m, nil
	}
	service := strings.HasPrefix(name, "_")
	name = serviceHost(name)
	d := c.Program.Name(name)
	if !d.Allowed {
		s.denied.Add(1)
		s.event(c, state, Event{Kind: Denied, Name: name, Type: typeName(question.Qtype), Rule: d.Rule, Source: d.Source, Why: d.Why})
		return denial(q, d.Why), nil
	}
	if t := question.Qtype; service || t != miekg.TypeA && t != miekg.TypeAAAA && t != miekg.TypeHTTPS {
		s.answered.Add(1)
		return noData(q), nil
	}
	if d.Wild && d.Check {
		if why := suspicious(name); why != "" {
			return s.suspect(c, state, q, name, why), nil
		}
		if !state.spend(name, s.cfg.Now()) {
			return s.suspect(c, state, q, name, "more new names under wildcards than its rate"), nil
		}
	}
	r, err := s.lookups.get(ctx, name, question.Qtype)
	if err != nil {
		s.failed.Add(1)
		s.event(c, state, Event{Kind: Failed, Name: name, Type: typeName(question.Qtype), Why: err.Error()})
		return failure(q, miekg.ExtendedErrorCodeNoReachableAuthority, err.Error()), nil
	}
	return s.deliver(ctx, c, state, q, name, r)
}

// serviceHost is the host that a service's name (_http._tcp.deb.debian.org) belongs to. Such names are decided as their
// host, and have no data: apt and others ask for them first, and go on without.
func serviceHost(name string) string {
	for strings.HasPrefix(name, "_") {
		_, name, _ = strings.Cut(name, ".")
	}
	return name
}

// deliver turns what upstreams said into what the sandbox is told, and opens it.
func (s *Server) deliver(ctx context.Context, c Client, state *client, q *miekg.Msg, name string, r *result) (*miekg.Msg, error) {
	question := q.Question[0]
	for _, link := range r.links {
		if d := c.Program.Name(link); !d.Allowed && strings.HasPrefix(d.Rule, "!") {
			s.denied.Add(1)
			why := "it is an alias of " + link + ": " + d.Why
			s.event(c, state, Event{Kind: Denied, Name: name, Type: typeName(question.Qtype), Rule: d.Rule, Source: d.Source, Why: why})
			return denial(q, why), nil
		}
	}
	if r.rcode != miekg.RcodeSuccess {
		s.answered.Add(1)
		m := reply(q, r.rcode)
		m.Ns = authority(r.left(s.cfg.Now()))
		return m, nil
	}
	left := r.left(s.cfg.Now())
	grant := Grant{Key: c.Key, Generation: c.Generation, Name: name, Until: s.cfg.Now().Add(left + s.cfg.Grace)}
	var keep, drop []netip.Addr
	why := ""
	for _, a := range r.addrs {
		openings, because, ok := c.Program.Open(name, a)
		if !ok {
			drop, why = append(drop, a), because
			continue
		}
		if len(keep) == s.cfg.MaxAddresses {
			break
		}
		keep = append(keep, a)
		if len(openings) > 0 {
			grant.Addresses = append(grant.Addresses, Address{a, openings})
		}
	}
	if len(drop) > 0 {
		s.dropped.Add(1)
		s.event(c, state, Event{Kind: Dropped, Name: name, Type: typeName(question.Qtype), Why: why, Addresses: drop[:min(len(drop), 16)]})
	}
	if len(keep) == 0 && len(drop) > 0 {
		m := noData(q)
		explain(m, q, miekg.ExtendedErrorCodeBlocked, why)
		return m, nil
	}
	if len(grant.Addresses) > 0 {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		if err := s.cfg.Opener.Open(ctx, grant); errors.Is(err, ErrStale) {
			return nil, ErrStale
		} else if err != nil {
			s.failed.Add(1)
			s.event(c, state, Event{Kind: Failed, Name: name, Type: typeName(question.Qtype), Why: "open its addresses: " + err.Error()})
			return failure(q, miekg.ExtendedErrorCodeOther, "the node could not open the addresses"), nil
		}
	}
	s.answered.Add(1)
	return s.positive(q, r, keep, left), nil
}

// positive writes the chain of aliases, and addresses or HTTPS records at its end.
func (s *Server) positive(q *miekg.Msg, r *result, addrs []netip.Addr, left time.Duration) *miekg.Msg {
	question := q.Question[0]
	ttl := uint32(max(1, (left+time.Second-1)/time.Second))
	m := reply(q, miekg.RcodeSuccess)
	owner := question.Name
	if len(addrs)+len(r.https) == 0 {
		m.Ns = authority(left)
		return m
	}
	for _, link := range r.links {
		m.Answer = append(m.Answer, &miekg.CNAME{Hdr: header(owner, miekg.TypeCNAME, ttl), Target: miekg.Fqdn(link)})
		owner = miekg.Fqdn(link)
	}
	for _, a := range addrs {
		if a.Is4() {
			m.Answer = append(m.Answer, &miekg.A{Hdr: header(owner, miekg.TypeA, ttl), A: net.IP(a.AsSlice())})
		} else {
			m.Answer = append(m.Answer, &miekg.AAAA{Hdr: header(owner, miekg.TypeAAAA, ttl), AAAA: net.IP(a.AsSlice())})
		}
	}
	for _, h := range r.https {
		h := *h
		h.Hdr = header(owner, miekg.TypeHTTPS, ttl)
		m.Answer = append(m.Answer, &h)
	}
	return m
}

func (s *Server) limit(c Client, state *client, q *miekg.Msg, why string) *miekg.Msg {
	s.limited.Add(1)
	s.event(c, state, Event{Kind: Limited, Name: strings.ToLower(q.Question[0].Name), Type: typeName(q.Question[0].Qtype), Why: why})
	m := reply(q, miekg.RcodeRefused)
	explain(m, q, miekg.ExtendedErrorCodeProhibited, why)
	return m
}

func (s *Server) suspect(c Client, state *client, q *miekg.Msg, name, why string) *miekg.Msg {
	s.limited.Add(1)
	s.event(c, state, Event{Kind: Limited, Name: name, Type: typeName(q.Question[0].Qtype), Why: why})
	return denial(q, why)
}

// event passes an event on, within the sandbox's rate of them.
func (s *Server) event(c Client, state *client, e Event) {
	e.Time, e.Key, e.Generation = s.cfg.Now(), c.Key, c.Generation
	if n, ok := state.report(e.Time); ok {
		e.Suppressed = n
		s.cfg.Events(e)
	}
}
