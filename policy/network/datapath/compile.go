package datapath

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// forbidden is everything that no policy opens.
func forbidden(r *link.Router, more []netip.Prefix) ([]netip.Prefix, error) {
	all := []netip.Prefix{r.Plan().Pool4, r.Plan().Pool6}
	for _, p := range network.AlwaysDenied() {
		// In the maps IPv4 inside IPv6 stands for IPv4; as such it never leaves a sandbox.
		if !p.Addr().Is4In6() {
			all = append(all, p)
		}
	}
	all = append(all, r.Uplinks()...)
	for _, p := range more {
		if !p.IsValid() {
			return nil, fmt.Errorf("a forbidden prefix is not valid: %w", sandbox.ErrInvalid)
		}
		all = append(all, unmapped(p))
	}
	for i := range all {
		all[i] = all[i].Masked()
	}
	slices.SortFunc(all, comparePrefix)
	return slices.Compact(all), nil
}

func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// list is the openings of one prefix in canonical form.
type list []wireRule

func (l list) key() string {
	b := make([]byte, 0, 6*len(l))
	for _, r := range l {
		b = binary.BigEndian.AppendUint16(b, r.From)
		b = binary.BigEndian.AppendUint16(b, r.To)
		b = append(b, r.Protocol, r.Verdict)
	}
	return string(b)
}

func makeList(openings []network.Opening) (list, error) {
	var l list
	for _, o := range openings {
		n, ok := protocolNumber[o.Protocol]
		if !ok || o.From > o.To || o.Verdict > network.VerdictCheck {
			return nil, fmt.Errorf("opening %s: %w", o, sandbox.ErrInvalid)
		}
		if o.Verdict == network.VerdictCheck && o.Protocol != network.TCP {
			return nil, fmt.Errorf("opening %s: only TCP can be checked: %w", o, sandbox.ErrInvalid)
		}
		if o.Verdict == network.VerdictDeny {
			continue // what is not named is denied
		}
		l = append(l, wireRule{From: o.From, To: o.To, Protocol: n, Verdict: uint8(o.Verdict)})
	}
	if len(l) > maxRules {
		return nil, fmt.Errorf("%d ranges of ports for one address; at most %d are possible: %w", len(l), maxRules, sandbox.ErrInvalid)
	}
	slices.SortFunc(l, func(a, b wireRule) int {
		if a.Protocol != b.Protocol {
			return int(a.Protocol) - int(b.Protocol)
		}
		return int(a.From) - int(b.From)
	})
	for i := 1; i < len(l); i++ {
		if l[i-1].Protocol == l[i].Protocol && l[i].From <= l[i-1].To || l[0].Protocol == 0 {
			return nil, fmt.Errorf("openings of one address overlap: %w", sandbox.ErrInvalid)
		}
	}
	return l, nil
}

// table is a policy in canonical form: for each prefix its list, sorted by prefix. The longest prefix decides alone.
type table struct {
	prefixes []netip.Prefix
	lists    []list
}

func makeTable(entries []network.Entry) (*table, error) {
	byPrefix := make(map[netip.Prefix][]network.Opening, len(entries))
	t := &table{}
	for _, e := range entries {
		if !e.Prefix.IsValid() || e.Prefix.Masked() != e.Prefix {
			return nil, fmt.Errorf("prefix %s: give one without host bits: %w", e.Prefix, sandbox.ErrInvalid)
		}
		// IPv4 inside IPv6 never leaves a sandbox; in the maps such prefixes stand for IPv4.
		if e.Prefix.Addr().Is4In6() {
			continue
		}
		if _, seen := byPrefix[e.Prefix]; !seen {
			t.prefixes = append(t.prefixes, e.Prefix)
		}
		byPrefix[e.Prefix] = append(byPrefix[e.Prefix], e.Opening)
	}
	slices.SortFunc(t.prefixes, comparePrefix)
	same := map[string]list{}
	for _, p := range t.prefixes {
		l, err := makeList(byPrefix[p])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if known, ok := same[l.key()]; ok {
			l = known
		} else {
			same[l.key()] = l
		}
		t.lists = append(t.lists, l)
	}
	t.add4()
	return t, nil
}

// sort puts a table that was read back into its order.
func (t *table) sort() {
	order := make([]int, len(t.prefixes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return comparePrefix(t.prefixes[a], t.prefixes[b]) })
	sorted := table{}
	for _, i := range order {
		sorted.prefixes = append(sorted.prefixes, t.prefixes[i])
		sorted.lists = append(sorted.lists, t.lists[i])
	}
	*t = sorted
}

// add4 gives IPv4 a prefix of its own. In the kernel IPv4 addresses are IPv6 addresses: without it, a prefix of IPv6 that
// contains them would decide on them.
func (t *table) add4() {
	all := netip.MustParsePrefix("0.0.0.0/0")
	if !slices.Contains(t.prefixes, all) {
		t.prefixes, t.lists = append(t.prefixes, all), append(t.lists, nil)
		t.sort()
	}
}

// digest names the content.
func (t *table) digest() [sha256.Size]byte {
	h := sha256.New()
	for i, p := range t.prefixes {
		b, _ := p.MarshalBinary()
		k := t.lists[i].key()
		h.Write([]byte{byte(len(b))})
		h.Write(b)
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(k))))
		h.Write([]byte(k))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func checkSlot(slot int) error {
	if slot < 0 || slot >= link.Slots {
		return fmt.Errorf("slot %d: there are %d: %w", slot, link.Slots, sandbox.ErrInvalid)
	}
	return nil
}
