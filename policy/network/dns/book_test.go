package dns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network/dns"
)

func TestBook(t *testing.T) {
	now := time.Unix(1000, 0)
	b := dns.NewBook(func() time.Time { return now })
	a := netip.MustParseAddr("203.0.113.1")
	n := &node{t: t}
	o := b.Opener(n)
	grant := dns.Grant{Key: "k", Name: "example.org", Addresses: []dns.Address{{Addr: a}}, Until: now.Add(10 * time.Second)}
	if err := o.Open(t.Context(), grant); err != nil || len(n.grants) != 1 {
		t.Fatal(err, n.grants)
	}
	if !b.Answered("k", "example.org", a) || b.Answered("k", "example.net", a) || b.Answered("other", "example.org", a) || b.Answered("k", "example.org", a.Next()) {
		t.Error("the book is wrong")
	}
	n.open = func(dns.Grant) error { return errors.New("no") }
	grant.Name = "closed.example"
	if err := o.Open(t.Context(), grant); err == nil || b.Answered("k", "closed.example", a) {
		t.Error("what could not be opened is in the book")
	}
	n.open = nil
	now = now.Add(10 * time.Second)
	if b.Answered("k", "example.org", a) {
		t.Error("still answered after its time")
	}
	for i := range 20000 {
		grant.Name, grant.Until = fmt.Sprint(i), now.Add(time.Minute)
		if err := o.Open(t.Context(), grant); err != nil {
			t.Fatal(err)
		}
	}
	if !b.Answered("k", "19999", a) {
		t.Error("the last one is not there")
	}
	b.Forget("k")
	if b.Answered("k", "19999", a) {
		t.Error("forgotten, and still there")
	}
}

// TestBookEntries: what was answered can be carried to other rules, expired answers too.
func TestBookEntries(t *testing.T) {
	now := time.Now()
	b := dns.NewBook(func() time.Time { return now })
	n := &node{t: t}
	a := netip.MustParseAddr("203.0.113.7")
	grant := dns.Grant{Key: "k", Name: "open.example", Addresses: []dns.Address{{Addr: a}}, Until: now.Add(time.Minute)}
	if err := b.Opener(n).Open(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if got := b.Entries("k"); len(got) != 1 || got[0] != (dns.Entry{"open.example", a, grant.Until}) {
		t.Errorf("%v", got)
	}
	if b.Answered("k", "open.example", a) {
		t.Error("it is still valid")
	}
	b.Forget("k")
	if got := b.Entries("k"); len(got) != 0 {
		t.Errorf("forgotten: %v", got)
	}
}
