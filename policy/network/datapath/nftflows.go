package datapath

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/opendsec/dsec/policy/network"
)

// unlimit takes the rates of a slot out.
func (f *filter) unlimit(b *strings.Builder, slot int, s *filterSlot) {
	if s.Limits.Bandwidth == 0 {
		return
	}
	fmt.Fprintf(b, "delete element inet datapath rates { %d }\ndelete chain inet datapath r%d\n", s.Index, slot)
}

func (f *filter) Limit(slot int, l network.Limits) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return err
	}
	next := *s
	next.Limits = l
	var b strings.Builder
	f.unlimit(&b, slot, s)
	if l.Bandwidth > 0 {
		burst := min(max(l.Bandwidth/5, 192<<10), 1<<31)
		fmt.Fprintf(&b, "add chain inet datapath r%d\n", slot)
		for _, to := range []string{"iifname \"s*\"", "oifname \"s*\""} { // a rule each: a bucket each
			refuse := fmt.Sprintf("goto d%d", OverRate)
			if to[0] == 'o' {
				refuse = "drop"
			}
			fmt.Fprintf(&b, "add rule inet datapath r%d %s limit rate over %d bytes/second burst %d bytes %s\n", slot, to, l.Bandwidth, burst, refuse)
		}
		fmt.Fprintf(&b, "add element inet datapath rates { %d : jump r%d }\n", s.Index, slot)
	}
	if s.Token[0] != 0 {
		f.rules(&b, slot, &next, s.Token[0])
	}
	if b.Len() > 0 {
		if _, err := f.run(b.String()); err != nil {
			return fmt.Errorf("limits of slot %d: %w", slot, err)
		}
	}
	*s = next
	return f.save(slot, s)
}

// sums are a slot's counters as they are in the kernel: bytes and packets, and packets.
type sums struct {
	denied    map[Reason]uint64
	sent, got [2]uint64
	untold    uint64
}

func (f *filter) read(slot int) (v sums, err error) {
	v.denied = map[Reason]uint64{}
	name := "s" + strconv.Itoa(slot)
	for _, set := range []string{"refused", "sent", "got", "untold"} {
		out, err := f.run("list set inet datapath " + set)
		if err != nil {
			return v, err
		}
		var doc struct {
			Nftables []struct {
				Set *struct {
					Elem []struct {
						Elem struct {
							Val     json.RawMessage
							Counter struct{ Packets, Bytes uint64 }
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			return v, fmt.Errorf("read counters: %w", err)
		}
		for _, n := range doc.Nftables {
			if n.Set == nil {
				continue
			}
			for _, e := range n.Set.Elem {
				c := e.Elem.Counter
				var one string
				var two struct{ Concat []any }
				switch {
				case set != "refused" && json.Unmarshal(e.Elem.Val, &one) == nil && one == name:
					switch set {
					case "sent":
						v.sent = [2]uint64{c.Bytes, c.Packets}
					case "got":
						v.got = [2]uint64{c.Bytes, c.Packets}
					default:
						v.untold = c.Packets
					}
				case set == "refused" && json.Unmarshal(e.Elem.Val, &two) == nil && len(two.Concat) == 2 && two.Concat[0] == name:
					if r, ok := two.Concat[1].(float64); ok {
						v.denied[Reason(r)] = c.Packets
					}
				}
			}
		}
	}
	return v, nil
}

func (f *filter) Counters(slot int) (Counters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return Counters{}, err
	}
	v, err := f.read(slot)
	if err != nil {
		return Counters{}, err
	}
	c := Counters{BytesOut: v.sent[0] - s.Sent[0], PacketsOut: v.sent[1] - s.Sent[1], BytesIn: v.got[0] - s.Got[0], PacketsIn: v.got[1] - s.Got[1],
		EventsLost: v.untold - min(s.Untold, v.untold), Denied: map[Reason]uint64{}}
	for r, n := range v.denied {
		if n > s.Base[r] {
			c.Denied[r] = n - s.Base[r]
		}
	}
	flows, err := f.flows(slot, s)
	for _, fl := range flows {
		if !fl.Closed {
			c.Live++
		}
	}
	return c, err
}

func (f *filter) Flows(slot int) ([]Flow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return nil, err
	}
	return f.flows(slot, s)
}

// ofSlot tells whether a connection is a slot's, and from which side it was opened.
func (f *filter) ofSlot(slot int, c *netlink.ConntrackFlow) (mine, inbound bool) {
	p := f.cfg.Router.Plan()
	from, _ := netip.AddrFromSlice(c.Forward.SrcIP)
	to, _ := netip.AddrFromSlice(c.Forward.DstIP)
	is := func(a netip.Addr) bool { a = a.Unmap(); return a == p.Address4(slot) || a == p.Address6(slot) }
	return is(from) || is(to), is(to)
}

func (f *filter) conntrack(do func(h *netlink.Handle, family netlink.InetFamily) error) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(int(f.cfg.Router.File().Fd())))
	if err != nil {
		return fmt.Errorf("open connection tracking: %w", err)
	}
	defer h.Close()
	const inet, inet6 = 2, 10
	return errors.Join(do(h, inet), do(h, inet6))
}

func (f *filter) flows(slot int, s *filterSlot) ([]Flow, error) {
	var out []Flow
	err := f.conntrack(func(h *netlink.Handle, family netlink.InetFamily) error {
		all, err := h.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return fmt.Errorf("flows of slot %d: %w", slot, err)
		}
		for _, c := range all {
			if fl, ok := f.flow(slot, s, c); ok {
				out = append(out, fl)
			}
		}
		return nil
	})
	return out, err
}

// flow is a connection as its slot sees it; ok is false for those of others, and to the resolver.
func (f *filter) flow(slot int, s *filterSlot, c *netlink.ConntrackFlow) (fl Flow, ok bool) {
	mine, inbound := f.ofSlot(slot, c)
	if !mine {
		return fl, false
	}
	local, remote, remotePort := c.Forward.SrcPort, c.Forward.DstIP, c.Forward.DstPort
	if inbound {
		local, remote, remotePort = c.Forward.DstPort, c.Forward.SrcIP, c.Forward.SrcPort
	}
	a, _ := netip.AddrFromSlice(remote)
	a = a.Unmap()
	if plan := f.cfg.Router.Plan(); !inbound && (a == plan.Gateway4() || a == plan.Gateway6()) {
		return fl, false
	}
	fl = Flow{Protocol: protocolOf(c.Forward.Protocol), LocalPort: local, Remote: netip.AddrPortFrom(a, remotePort), Inbound: inbound,
		Proxied: c.Mark&checkedBit != 0, First: time.Unix(0, int64(c.TimeStart)),
		BytesOut: c.Forward.Bytes, PacketsOut: c.Forward.Packets, BytesIn: c.Reverse.Bytes, PacketsIn: c.Reverse.Packets}
	if inbound {
		fl.BytesOut, fl.PacketsOut, fl.BytesIn, fl.PacketsIn = fl.BytesIn, fl.PacketsIn, fl.BytesOut, fl.PacketsOut
	}
	if t, ok := c.ProtoInfo.(*netlink.ProtoInfoTCP); ok {
		const lastAck = 6 // and time-wait and close after it
		fl.Closed = t.State >= lastAck
	}
	if s.Token[0] != 0 && c.Mark&^uint32(checkedBit) == s.Token[0] {
		fl.Generation = s.Generation[0]
	}
	return fl, true
}

// slotFlows selects a slot's connections.
type slotFlows struct {
	f    *filter
	slot int
}

// MatchConntrackFlow is netlink's way to select.
func (m slotFlows) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	mine, _ := m.f.ofSlot(m.slot, c)
	return mine
}

func (f *filter) forgetFlows(slot int) error {
	return f.conntrack(func(h *netlink.Handle, family netlink.InetFamily) error {
		if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, slotFlows{f, slot}); err != nil {
			return fmt.Errorf("forget the flows of slot %d: %w", slot, err)
		}
		return nil
	})
}
