package dns

import (
	"time"

	miekg "github.com/miekg/dns"
)

// reply is an answer without records.
func reply(q *miekg.Msg, rcode int) *miekg.Msg {
	m := new(miekg.Msg)
	m.SetRcode(q, rcode)
	m.RecursionAvailable = true
	m.Compress = true
	if q.IsEdns0() != nil {
		m.SetEdns0(1232, false)
		m.SetRcode(q, rcode) // the upper bits of BADVERS are in the record
	}
	return m
}

func header(owner string, rrtype uint16, ttl uint32) miekg.RR_Header {
	return miekg.RR_Header{Name: owner, Rrtype: rrtype, Class: miekg.ClassINET, Ttl: ttl}
}

// authority says for how long a name's absence may be believed.
func authority(left time.Duration) []miekg.RR {
	ttl := uint32(max(1, left/time.Second))
	return []miekg.RR{&miekg.SOA{
		Hdr: header(".", miekg.TypeSOA, ttl), Ns: "node.invalid.", Mbox: "nobody.invalid.",
		Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: ttl,
	}}
}

// denial says that a name does not exist, and why.
func denial(q *miekg.Msg, why string) *miekg.Msg {
	m := reply(q, miekg.RcodeNameError)
	m.Ns = authority(localTTL * time.Second)
	explain(m, q, miekg.ExtendedErrorCodeProhibited, why)
	return m
}

// noData says that a name has no records of the type.
func noData(q *miekg.Msg) *miekg.Msg {
	m := reply(q, miekg.RcodeSuccess)
	m.Ns = authority(localTTL * time.Second)
	return m
}

func failure(q *miekg.Msg, code uint16, why string) *miekg.Msg {
	m := reply(q, miekg.RcodeServerFailure)
	explain(m, q, code, why)
	return m
}

// explain adds a reason for clients that understand it.
func explain(m, q *miekg.Msg, code uint16, why string) {
	if o := m.IsEdns0(); o != nil && q.IsEdns0() != nil {
		o.Option = append(o.Option, &miekg.EDNS0_EDE{InfoCode: code, ExtraText: why[:min(len(why), 200)]})
	}
}

func typeName(t uint16) string { return miekg.Type(t).String() }
