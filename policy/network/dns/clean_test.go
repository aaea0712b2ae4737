package dns

import (
	"strings"
	"testing"

	miekg "github.com/miekg/dns"
)

// Whatever an upstream sends, clean neither panics nor takes records that do not belong to the question.
func FuzzClean(f *testing.F) {
	for _, zone := range []string{
		"example.org. 60 IN A 203.0.113.1",
		"example.org. 60 IN CNAME a.example.\na.example. 5 IN A 203.0.113.1\nb.example. 5 IN A 203.0.113.66",
		"example.org. 60 IN CNAME example.org.",
		"example.org. 60 IN HTTPS 1 . alpn=h3,h2 port=8443",
	} {
		m := new(miekg.Msg).SetQuestion("example.org.", miekg.TypeA)
		m.Response = true
		zp := miekg.NewZoneParser(strings.NewReader(zone), "", "")
		for rr, ok := zp.Next(); ok; rr, ok = zp.Next() {
			m.Answer = append(m.Answer, rr)
		}
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, qtype := range []uint16{miekg.TypeA, miekg.TypeAAAA, miekg.TypeHTTPS} {
			m := new(miekg.Msg)
			if m.Unpack(b) != nil {
				return
			}
			r, err := clean(m, "example.org", qtype)
			if err != nil {
				continue
			}
			end := "example.org"
			if len(r.links) > 0 {
				end = r.links[len(r.links)-1]
			}
			for _, rr := range m.Answer {
				if h := rr.Header(); h.Rrtype != miekg.TypeCNAME && (fold(h.Name) != end || h.Rrtype != qtype) {
					t.Fatalf("took %v", rr)
				}
			}
			if r.ttl(m) < 0 || len(r.links) > maxLinks {
				t.Fatalf("%+v", r)
			}
			for _, h := range r.https {
				for _, v := range h.Value {
					if v.Key() != miekg.SVCB_ALPN {
						t.Fatalf("kept %v", h)
					}
				}
			}
		}
	})
}

func TestEntropy(t *testing.T) {
	for name, suspect := range map[string]bool{
		"prod-registry-k8s-io-us-west-1.s3.dualstack.us-west-1.amazonaws.com": false,
		"d111111abcdef8.cloudfront.net":                                       false,
		"ec2-203-0-113-25.compute-1.amazonaws.com":                            false,
		"fastly-tools-production-distribution-endpoint.example.org":           false,
		"nbswy3dpeb3w64tmmqqho2lunaqgcidtmvrxezlu7a.example.org":              true,
		"4fzsl3kq9w0x8yv7u6t5r2e1m0nbpa6h3d.example.org":                      true,
	} {
		if why := suspicious(name); (why != "") != suspect {
			t.Errorf("%s: %q", name, why)
		}
	}
}
