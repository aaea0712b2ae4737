package dns

import (
	"net"
	"net/netip"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// local answers names that need no policy and never leave the node.
func (s *Server) local(c Client, name string, q *miekg.Msg) (*miekg.Msg, bool) {
	question := q.Question[0]
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return addresses(q, []netip.Addr{loopback4, loopback6}), true
	case strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa"):
		if question.Qtype == miekg.TypePTR && (name == "1.0.0.127.in-addr.arpa" || name == loopback6Reverse) {
			m := reply(q, miekg.RcodeSuccess)
			m.Answer = []miekg.RR{&miekg.PTR{Hdr: header(question.Name, miekg.TypePTR, localTTL), Ptr: "localhost."}}
			return m, true
		}
		return denial(q, "addresses have no names here"), true
	case name == "use-application-dns.net":
		// Browsers ask for it before they go to a resolver of their own.
		return denial(q, "names resolve through the node only"), true
	case name == "resolver.arpa" || strings.HasSuffix(name, ".resolver.arpa"):
		return noData(q), true
	}
	if list, ok := s.cfg.Local(c.Key, name); ok {
		return addresses(q, list), true
	}
	return nil, false
}

var loopback6Reverse = func() string {
	r, err := miekg.ReverseAddr("::1")
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(r, ".")
}()

// addresses answers with those of the asked family.
func addresses(q *miekg.Msg, list []netip.Addr) *miekg.Msg {
	question := q.Question[0]
	m := reply(q, miekg.RcodeSuccess)
	for _, a := range list {
		switch a = a.Unmap(); {
		case a.Is4() && question.Qtype == miekg.TypeA:
			m.Answer = append(m.Answer, &miekg.A{Hdr: header(question.Name, miekg.TypeA, localTTL), A: net.IP(a.AsSlice())})
		case a.Is6() && question.Qtype == miekg.TypeAAAA:
			m.Answer = append(m.Answer, &miekg.AAAA{Hdr: header(question.Name, miekg.TypeAAAA, localTTL), AAAA: net.IP(a.AsSlice())})
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = authority(localTTL * time.Second)
	}
	return m
}
