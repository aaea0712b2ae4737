package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// class is the chain of a list of port rules: what matches nothing returns.
func (f *filter) class(b *strings.Builder, l list) string {
	h := sha256.Sum256([]byte(l.key()))
	name := "c" + hex.EncodeToString(h[:10])
	if f.classes[name] {
		return name
	}
	f.classes[name] = true
	fmt.Fprintf(b, "add chain inet datapath %[1]s\nflush chain inet datapath %[1]s\n", name)
	for _, r := range l {
		to := "permit"
		if r.Verdict == uint8(network.VerdictCheck) {
			to = "check"
		}
		match := ""
		switch protocolOf(r.Protocol) {
		case network.ICMP:
			match = "meta l4proto { icmp, icmpv6 } "
		case network.TCP:
			match = fmt.Sprintf("meta l4proto tcp ct original proto-dst %d-%d ", r.From, r.To)
		case network.UDP:
			match = fmt.Sprintf("meta l4proto udp ct original proto-dst %d-%d ", r.From, r.To)
		}
		fmt.Fprintf(b, "add rule inet datapath %s %sgoto %s\n", name, match, to)
	}
	return name
}

// part is a range of addresses with the list of the longest prefix that contains it.
type part struct {
	from, to netip.Addr
	list     list
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// parts writes a table, sorted by prefix, as ranges that do not overlap.
func (t *table) parts(v6 bool) []part {
	type open struct {
		last netip.Addr
		list list
	}
	var out []part
	var stack []open
	var next netip.Addr // the first address that is not written yet; invalid: all are
	emit := func(to netip.Addr, l list) {
		if next.IsValid() && next.Compare(to) <= 0 {
			if len(l) > 0 {
				out = append(out, part{next, to, l})
			}
			next = to.Next()
		}
	}
	for i, p := range t.prefixes {
		if p.Addr().Is6() != v6 {
			continue
		}
		for len(stack) > 0 && stack[len(stack)-1].last.Less(p.Addr()) {
			top := stack[len(stack)-1]
			emit(top.last, top.list)
			stack = stack[:len(stack)-1]
		}
		if len(stack) > 0 && p.Addr().Prev().IsValid() {
			emit(p.Addr().Prev(), stack[len(stack)-1].list)
		}
		next = p.Addr()
		stack = append(stack, open{lastOf(p), t.lists[i]})
	}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		emit(top.last, top.list)
		stack = stack[:len(stack)-1]
	}
	return out
}

func (f *filter) makeMaps(b *strings.Builder, token uint32) {
	fmt.Fprintf(b, "add map inet datapath p4_%[1]d { type ipv4_addr : verdict; flags interval; }\nadd map inet datapath p6_%[1]d { type ipv6_addr : verdict; flags interval; }\n"+
		"add map inet datapath l4_%[1]d { type ipv4_addr : verdict; flags timeout; size %[2]d; }\nadd map inet datapath l6_%[1]d { type ipv6_addr : verdict; flags timeout; size %[2]d; }\n",
		token, LearnedAddresses)
}

func (f *filter) dropMaps(b *strings.Builder, token uint32) {
	if token == 0 {
		return
	}
	// What is not there is made first: a transaction that removes something else would not be carried out.
	f.makeMaps(b, token)
	for _, m := range []string{"p4", "p6", "l4", "l6"} {
		fmt.Fprintf(b, "delete map inet datapath %s_%d\n", m, token)
	}
}

// stale makes the flows of the present token be judged anew.
func (f *filter) stale(b *strings.Builder, s *filterSlot) {
	fmt.Fprintf(b, "delete element inet datapath fresh { %d . %#x, %d . %#x }\n", s.Index, s.Token[0], s.Index, s.Token[0]|checkedBit)
}

// rules of a slot's chain.
func (f *filter) rules(b *strings.Builder, slot int, s *filterSlot, token uint32) {
	rule := func(format string, args ...any) {
		fmt.Fprintf(b, "add rule inet datapath s%d %s\n", slot, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(b, "flush chain inet datapath s%d\n", slot)
	rule("meta mark set %#x", token)
	rule("iifname \"s*\" ct state new ct count over %d goto d%d", maxFlows(s.Limits), TooManyFlows)
	for _, m := range []string{"l", "p"} {
		rule("ct original ip daddr vmap @%s4_%d", m, token)
		rule("ct original ip6 daddr vmap @%s6_%d", m, token)
	}
	rule("iifname != \"s*\" goto din")
	rule("ct mark != 0 goto d%d", Cut)
	rule("goto d%d", ByPolicy)
}

func (f *filter) Set(slot int, generation uint64, entries []network.Entry) error {
	t, err := makeTable(entries)
	if err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	if generation == 0 {
		return fmt.Errorf("policy of slot %d: generations begin at 1: %w", slot, sandbox.ErrInvalid)
	}
	sum := t.digest()
	digest := hex.EncodeToString(sum[:])
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return err
	}
	switch {
	case generation < s.Generation[0]:
		return fmt.Errorf("policy of slot %d: generation %d is in force, %d is older: %w", slot, s.Generation[0], generation, sandbox.ErrConflict)
	case generation == s.Generation[0] && digest == s.Digest[0]:
		return nil
	case generation == s.Generation[0]:
		return fmt.Errorf("policy of slot %d: another one of generation %d is in force: %w", slot, generation, sandbox.ErrConflict)
	}
	next := *s
	if _, err := f.tokenOf(&next, generation); err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	next.Digest[1] = digest
	if err := f.save(slot, &next); err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	token := next.Token[1]
	// What nothing refers to yet is written ahead: chains must be there before a map names them, and a socket takes only
	// so much at once. Then one transaction makes it the policy.
	if err := f.prepare(t, token); err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	var b strings.Builder
	f.rules(&b, slot, &next, token)
	if s.Token[0] != 0 {
		f.stale(&b, s)
		f.dropMaps(&b, s.Token[0])
	} else {
		fmt.Fprintf(&b, "add element inet datapath slots { %d : goto s%d }\n", s.Index, slot)
	}
	fmt.Fprintf(&b, "add element inet datapath fresh { %d . %#x, %d . %#x }\n", s.Index, token, s.Index, token|checkedBit)
	if _, err := f.run(b.String()); err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	next.Generation[0], next.Token[0], next.Digest[0] = next.Generation[1], token, digest
	next.Generation[1], next.Token[1], next.Digest[1] = 0, 0, ""
	delete(f.learned, s.Token[0])
	*s = next
	return f.save(slot, s)
}

// prepare writes the maps of a policy.
func (f *filter) prepare(t *table, token uint32) error {
	var classes, maps strings.Builder
	f.makeMaps(&maps, token)
	scripts := []string{""}
	for _, v6 := range []bool{false, true} {
		name, parts := "p4", t.parts(v6)
		if v6 {
			name = "p6"
		}
		const atOnce = 500
		for len(parts) > 0 {
			n := min(len(parts), atOnce)
			var elements []string
			for _, p := range parts[:n] {
				r := p.from.String()
				if p.to != p.from {
					r += "-" + p.to.String()
				}
				elements = append(elements, r+" : jump "+f.class(&classes, p.list))
			}
			scripts = append(scripts, fmt.Sprintf("add element inet datapath %s_%d { %s }\n", name, token, strings.Join(elements, ", ")))
			parts = parts[n:]
		}
	}
	scripts[0] = classes.String() + maps.String()
	for _, script := range scripts {
		if _, err := f.run(script); err != nil {
			clear(f.classes) // what this one would have made is not there
			var b strings.Builder
			f.dropMaps(&b, token)
			_, derr := f.run(b.String())
			return errors.Join(err, derr)
		}
	}
	return nil
}

// tokenOf is the token of a generation that holds, or will.
func (f *filter) tokenOf(s *filterSlot, generation uint64) (uint32, error) {
	switch {
	case generation != 0 && generation == s.Generation[0]:
		return s.Token[0], nil
	case generation < s.Generation[0] || generation == 0:
		return 0, fmt.Errorf("generation %d is in force, %d is older: %w", s.Generation[0], generation, sandbox.ErrConflict)
	case generation != s.Generation[1]:
		f.token = (f.token + 1) & (checkedBit - 1)
		f.token = max(f.token, 1)
		s.Generation[1], s.Token[1] = generation, f.token
	}
	return s.Token[1], nil
}

func (f *filter) Learn(slot int, generation uint64, addr netip.Addr, openings []network.Opening, until time.Time) error {
	addr = addr.Unmap()
	fail := func(err error) error { return fmt.Errorf("learn for slot %d: %w", slot, err) }
	if err := checkLearned(addr); err != nil {
		return fail(err)
	}
	l, err := makeList(openings)
	if err != nil {
		return fail(err)
	}
	left := time.Until(until).Milliseconds()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.banned {
		if p.Contains(addr) {
			return fail(fmt.Errorf("%s is never allowed: %w", addr, sandbox.ErrPermission))
		}
	}
	if len(l) == 0 || left <= 0 {
		return nil
	}
	s, err := f.attached(slot)
	if err != nil {
		return err
	}
	token, err := f.tokenOf(s, generation)
	if err != nil {
		return fail(err)
	}
	return f.learn(slot, s, token, addr, l, time.Duration(left)*time.Millisecond)
}

// learnedAddress is what this process has learned of one.
type learnedAddress struct {
	lists []list
	until []time.Time
}

// learn opens an address, or more ports of it. Ports that several names opened stay open until the last of them ends.
func (f *filter) learn(slot int, s *filterSlot, token uint32, addr netip.Addr, l list, left time.Duration) error {
	now := time.Now()
	known := f.learned[token]
	if known == nil {
		known = map[netip.Addr]*learnedAddress{}
		f.learned[token] = known
	}
	a := known[addr]
	if a == nil {
		for old, k := range known {
			if len(known) < LearnedAddresses {
				break
			}
			if k.ended(now) {
				delete(known, old)
			}
		}
		if len(known) >= LearnedAddresses {
			return fmt.Errorf("learn for slot %d: it knows %d addresses already, wait until some expire: %w", slot, len(known), sandbox.ErrExhausted)
		}
		a = &learnedAddress{}
	}
	next := learnedAddress{lists: []list{l}, until: []time.Time{now.Add(left)}}
	var merged list
	merged = append(merged, l...)
	last := left
	for i, old := range a.lists {
		if old.key() == l.key() || !a.until[i].After(now) {
			last = max(last, a.until[i].Sub(now))
			continue
		}
		next.lists, next.until = append(next.lists, old), append(next.until, a.until[i])
		merged = append(merged, old...)
		last = max(last, a.until[i].Sub(now))
	}
	if len(next.lists) > maxLearned {
		return fmt.Errorf("learn for slot %d: too many names have %s: %w", slot, addr, sandbox.ErrExhausted)
	}
	name := "l4"
	if addr.Is6() {
		name = "l6"
	}
	var make, class strings.Builder
	if s.Token[0] != token {
		f.makeMaps(&make, token) // of a generation that is not set yet
	}
	to := f.class(&class, merged)
	add := fmt.Sprintf("add element inet datapath %s_%d { %s timeout %dms : jump %s }\n", name, token, addr, max(1, last.Milliseconds()), to)
	drop := fmt.Sprintf("delete element inet datapath %s_%d { %s }\n", name, token, addr)
	// An element cannot be changed: it is taken out and put in again by one transaction. Whether there is one is known,
	// but for those of an earlier process.
	changes := []string{add, drop + add}
	if known[addr] != nil {
		changes = []string{drop + add, add}
	}
	_, err := f.run(class.String() + make.String())
	if err == nil {
		if _, err = f.run(changes[0]); err != nil {
			_, err = f.run(changes[1])
		}
	}
	if err != nil {
		clear(f.classes)
		return fmt.Errorf("learn for slot %d: %w", slot, err)
	}
	next.until[0] = now.Add(max(left, 0))
	known[addr] = &next
	return nil
}

func (a *learnedAddress) ended(now time.Time) bool {
	for _, u := range a.until {
		if u.After(now) {
			return false
		}
	}
	return true
}
