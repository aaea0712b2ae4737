package networktest

import (
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// Hostile starts a resolver at HostileV4 that answers every question with forgeries before the true answer: another
// id, another question, the question in another case, and an answer from another address. Each names evil. Its true
// answer names good, and carries further records that nobody asked for: evil for the other names in poison.
func (i *Internet) Hostile(good, evil netip.Addr, poison ...string) netip.AddrPort {
	i.t.Helper()
	i.AddAddr(HostileV4)
	at := netip.AddrPortFrom(HostileV4, 53)
	pc, err := i.ListenPacket("udp", at.String())
	if err != nil {
		i.t.Fatal(err)
	}
	other, err := i.ListenPacket("udp", netip.AddrPortFrom(HostileV4, 5353).String())
	if err != nil {
		i.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			q := new(dns.Msg)
			if q.Unpack(buf[:n]) != nil || len(q.Question) != 1 {
				continue
			}
			name := q.Question[0].Name
			lie := func(change func(*dns.Msg), by net.PacketConn) {
				m := Addresses(q, name, 3600, []netip.Addr{evil})
				change(m)
				if b, err := m.Pack(); err == nil {
					_, _ = by.WriteTo(b, from)
				}
			}
			lie(func(m *dns.Msg) { m.Id++ }, pc)
			lie(func(m *dns.Msg) { m.Question[0].Name = "other." + name }, pc)
			lie(func(m *dns.Msg) { m.Question[0].Name = swapCase(name) }, pc)
			lie(func(*dns.Msg) {}, other)
			m := Addresses(q, name, 60, []netip.Addr{good})
			for _, p := range poison {
				if strings.EqualFold(dns.Fqdn(p), name) {
					continue
				}
				m.Answer = append(m.Answer, AddressRecord(dns.Fqdn(p), 3600, evil))
				m.Extra = append(m.Extra, AddressRecord(dns.Fqdn(p), 3600, evil))
			}
			if b, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(b, from)
			}
		}
	})
	i.t.Cleanup(func() {
		pc.Close()
		other.Close()
		wg.Wait()
	})
	return at
}

// swapCase turns upper-case letters to lower and the reverse.
func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, s)
}
