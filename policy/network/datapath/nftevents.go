package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
)

// Numbers of the kernel's netfilter messages.
const (
	netfilter = 12 // the family of sockets

	logConfig, logPacket = 4<<8 | 1, 4 << 8
	flowGone             = 1<<8 | 2
	flowsGone            = 3 // the group that is told of it

	// logGroup is where the rules send what they deny.
	logGroup = 0xd5ec
	// logBytes of each packet: IP and ports, and what an ICMP error is about.
	logBytes = 96
)

// listen hears of denials, by the kernel's packet log, and of ended flows, by its connection tracking.
func (f *filter) listen() error {
	cfg := &nl.Config{NetNS: int(f.cfg.Router.File().Fd())}
	log, err := nl.Dial(netfilter, cfg)
	if err != nil {
		return fmt.Errorf("open the packet log: %w", err)
	}
	if err := bindLog(log); err != nil {
		// Without it denials are counted only.
		f.log.Warn("denials are not told: the kernel has no packet log", "err", err)
		_ = log.Close()
	} else {
		f.can.DenialEvents = true
		f.events.from(log, func() { f.receive(log, f.denial) })
	}
	flows, err := nl.Dial(netfilter, cfg)
	if err != nil {
		return fmt.Errorf("listen to connection tracking: %w", err)
	}
	if err := errors.Join(flows.SetReadBuffer(1<<20), flows.SetOption(nl.NoENOBUFS, true), flows.JoinGroup(flowsGone)); err != nil {
		f.log.Warn("ended connections are not told", "err", err)
		return flows.Close()
	}
	f.can.EndedEvents = true
	f.events.from(flows, func() { f.receive(flows, f.ended) })
	return nil
}

// request is a netfilter message: family, version, and what it is about, in network order.
func request(about uint16, attributes func(*nl.AttributeEncoder)) ([]byte, error) {
	e := nl.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	attributes(e)
	b, err := e.Encode()
	return append([]byte{0, 0, byte(about >> 8), byte(about)}, b...), err
}

func bindLog(c *nl.Conn) error {
	const command, mode, bind, copyPacket = 1, 2, 1, 2
	for _, attributes := range []func(*nl.AttributeEncoder){
		func(e *nl.AttributeEncoder) { e.Uint8(command, bind) },
		func(e *nl.AttributeEncoder) { e.Bytes(mode, []byte{0, 0, 0, logBytes, copyPacket, 0}) },
	} {
		body, err := request(logGroup, attributes)
		if err != nil {
			return err
		}
		if _, err := c.Execute(nl.Message{Header: nl.Header{Type: logConfig, Flags: nl.Request | nl.Acknowledge}, Data: body}); err != nil {
			return fmt.Errorf("bind the packet log: %w", err)
		}
	}
	return errors.Join(c.SetReadBuffer(1<<20), c.SetOption(nl.NoENOBUFS, true))
}

// receive hands on messages until the socket is closed. What cannot be read is counted as lost.
func (f *filter) receive(c *nl.Conn, take func(nl.Header, *nl.AttributeDecoder) (Event, bool)) {
	for {
		messages, err := c.Receive()
		if err != nil {
			var op *nl.OpError
			if errors.As(err, &op) && op.Temporary() {
				f.events.lost.Add(1)
				continue
			}
			return
		}
		for _, m := range messages {
			if len(m.Data) < 4 {
				continue
			}
			d, err := nl.NewAttributeDecoder(m.Data[4:])
			if err != nil {
				f.events.lost.Add(1)
				continue
			}
			d.ByteOrder = binary.BigEndian
			if ev, ok := take(m.Header, d); ok {
				f.events.send(ev)
			}
		}
	}
}

// denial reads a packet that was logged: its mark is the reason, its interface the slot.
func (f *filter) denial(h nl.Header, d *nl.AttributeDecoder) (Event, bool) {
	const mark, from, to, payload = 2, 4, 5, 9
	var reason, in, out uint32
	var packet []byte
	for d.Next() {
		switch d.Type() {
		case mark:
			reason = d.Uint32()
		case from:
			in = d.Uint32()
		case to:
			out = d.Uint32()
		case payload:
			packet = d.Bytes()
		}
	}
	if h.Type != logPacket || d.Err() != nil || reason == 0 || reason > uint32(Cut) {
		return Event{}, false
	}
	ev := Event{Time: time.Now(), Kind: Denied, Reason: Reason(reason)}
	ev.Inbound = ev.Reason == Inbound && out != 0
	index := in
	if ev.Inbound {
		index = out
	}
	ev.Slot = link.SlotAt(int(index))
	return ev, ev.Slot >= 0 && ev.about(packet)
}

// about fills in what a packet is about, as far as it is there.
func (ev *Event) about(p []byte) bool {
	var from, to netip.Addr
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		from, to = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		ev.Number, p = p[9], p[min(len(p), int(p[0]&15)*4):]
	case len(p) >= 40 && p[0]>>4 == 6:
		from, to = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		ev.Number, p = p[6], p[40:]
	default:
		return false
	}
	ev.Protocol = protocolOf(ev.Number)
	var source, destination uint16
	if len(p) >= 4 && (ev.Protocol == network.TCP || ev.Protocol == network.UDP) {
		source, destination = binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	}
	if ev.Inbound {
		to, source, destination = from, destination, source
	}
	ev.Remote, ev.LocalPort = netip.AddrPortFrom(to, destination), source
	return true
}

// ended reads a connection that the kernel has forgotten. Those of an earlier sandbox of the slot are nobody's.
func (f *filter) ended(h nl.Header, d *nl.AttributeDecoder) (Event, bool) {
	c, err := flowOf(d)
	if h.Type != flowGone || err != nil {
		return Event{}, false
	}
	from, ok := netip.AddrFromSlice(c.Forward.SrcIP)
	if !ok {
		return Event{}, false
	}
	slot, ok := f.cfg.Router.Plan().SlotOf(from.Unmap())
	token := c.Mark &^ uint32(checkedBit)
	if !ok || token == 0 {
		return Event{}, false
	}
	f.mu.Lock()
	s := f.slots[slot]
	var fl Flow
	if ok = s != nil && (token-s.First)&(checkedBit-1) < checkedBit/2; ok {
		fl, ok = f.flow(slot, s, c)
	}
	f.mu.Unlock()
	fl.Closed = true
	return Event{Time: time.Now(), Slot: slot, Kind: Ended, Protocol: fl.Protocol, Number: c.Forward.Protocol, LocalPort: fl.LocalPort, Remote: fl.Remote, Flow: &fl}, ok
}

// flowOf reads a connection as the kernel describes it.
func flowOf(d *nl.AttributeDecoder) (*netlink.ConntrackFlow, error) {
	const original, mark, counters, replied = 1, 8, 9, 10
	c := &netlink.ConntrackFlow{}
	sums := func(t *netlink.IPTuple) func(*nl.AttributeDecoder) error {
		return func(d *nl.AttributeDecoder) error {
			for d.Next() {
				switch d.Type() {
				case 1:
					t.Packets = d.Uint64()
				case 2:
					t.Bytes = d.Uint64()
				}
			}
			return d.Err()
		}
	}
	for d.Next() {
		switch d.Type() {
		case original:
			d.Nested(func(d *nl.AttributeDecoder) error { return tuple(d, &c.Forward) })
		case mark:
			c.Mark = d.Uint32()
		case counters:
			d.Nested(sums(&c.Forward))
		case replied:
			d.Nested(sums(&c.Reverse))
		}
	}
	return c, d.Err()
}

func tuple(d *nl.AttributeDecoder, t *netlink.IPTuple) error {
	const addresses, protocol = 1, 2
	for d.Next() {
		switch d.Type() {
		case addresses:
			d.Nested(func(d *nl.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case 1, 3: // IPv4, IPv6
						t.SrcIP = net.IP(d.Bytes())
					case 2, 4:
						t.DstIP = net.IP(d.Bytes())
					}
				}
				return d.Err()
			})
		case protocol:
			d.Nested(func(d *nl.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case 1:
						t.Protocol = d.Uint8()
					case 2, 4, 7: // a port, or an echo's id of either family
						t.SrcPort = d.Uint16()
					case 3:
						t.DstPort = d.Uint16()
					}
				}
				return d.Err()
			})
		}
	}
	return d.Err()
}
