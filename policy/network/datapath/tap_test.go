package datapath_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// What is judged at a machine's tap is the same as at a container's pair of interfaces.

func TestEBPFTap(t *testing.T) { conformanceTap(t, datapath.OpenEBPF) }
func TestNftablesTap(t *testing.T) {
	needTool(t, "nftables")
	conformanceTap(t, datapath.OpenNftables)
}

func conformanceTap(t *testing.T, open opener) {
	t.Run("oversize", func(t *testing.T) {
		w := newWorld(t, open)
		w.taps = true
		testOversize(t, w)
	})
	conformanceOf(t, open, true)
}

// machine makes the link of a slot, and a guest for it: a namespace with an interface of its own, whose frames go to
// the link's queue as a machine's do.
func (w *world) machine(b *box) {
	w.t.Helper()
	queue, err := w.router.MakeTap(b.slot)
	must(w.t, err)
	var nic *os.File
	must(w.t, b.Do(func() (err error) {
		nic, err = linux.OpenTap(link.Inside, 0)
		return err
	}))
	end := w.router.End(b.slot)
	must(w.t, b.Do(func() error {
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		index, err := linux.LinkIndex(link.Inside)
		if err != nil {
			return err
		}
		return r.Apply(append([]linux.Request{linux.UpLink(1), linux.ChangeLink(index, end.MAC, end.MTU, nil)}, end.Requests(index)...)...)
	}))
	b.queue = queue
	var wg sync.WaitGroup
	pump := func(from, to *os.File) {
		buf := make([]byte, 1<<17)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return // closed, or its interface is gone
			}
			_, _ = to.Write(buf[:n]) // down: lost, as on a wire
		}
	}
	wg.Go(func() { pump(queue, nic) })
	wg.Go(func() { pump(nic, queue) })
	w.t.Cleanup(func() {
		queue.Close()
		nic.Close()
		wg.Wait()
	})
}

// testOversize writes frames that no interface of the guest would send straight to the queue.
func testOversize(t *testing.T, w *world) {
	got := udpServer(t, w.internet, at(site4, portUDP))
	b := w.sandbox(40)
	b.set(allow("0.0.0.0/0"), allow("::/0"))
	p, s4, s6 := w.router.Plan(), netip.MustParseAddr(site4), netip.MustParseAddr(site6)
	gw, me := p.GatewayMAC(), p.MAC(40)
	large := func(n int) string { return string(make([]byte, n)) }
	tooLarge := map[string][]byte{
		"a byte too many": eth(gw, me, 0x0800, ip4(b.addr4(), s4, 17, 0, nil, udp(b.addr4(), s4, 1000, portUDP, large(1500-28+1)))),
		"64 KiB":          eth(gw, me, 0x0800, ip4(b.addr4(), s4, 17, 0, nil, udp(b.addr4(), s4, 1000, portUDP, large(65000)))),
		"64 KiB of IPv6":  eth(gw, me, 0x86dd, ip6(b.addr6(), s6, 17, udp(b.addr6(), s6, 1000, portUDP, large(65000)))),
	}
	if w.dp.Kind() == datapath.EBPF { // nftables sees what is left once the padding was cut off
		tooLarge["padding over the length"] = append(eth(gw, me, 0x0800, ip4(b.addr4(), s4, 17, 0, nil, udp(b.addr4(), s4, 1000, portUDP, "evil"))), large(3000)...)
	}
	for name, f := range tooLarge {
		before := b.denied(datapath.Malformed)
		if _, err := b.queue.Write(f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		within(t, name+" is denied", func() bool { return b.denied(datapath.Malformed) > before })
	}
	// Less than a header is no frame; a header alone is nothing that passes.
	if _, err := b.queue.Write(make([]byte, 13)); err == nil {
		t.Error("13 bytes are a frame")
	}
	for _, kind := range []uint16{0x0800, 0x86dd, 0x8100, 0x88a8, 0x8847, 0x8864, 0x22f3, 0x0806} {
		before := total(t, b)
		if _, err := b.queue.Write(eth(gw, me, kind, nil)); err != nil {
			continue // the tap itself refuses an IP packet without a version
		}
		if w.dp.Kind() == datapath.EBPF { // else what is no IP ends without being counted
			within(t, "an empty frame is denied", func() bool { return total(t, b) > before })
		}
	}
	_, err := b.queue.Write(eth(gw, me, 0x0800, ip4(b.addr4(), s4, 17, 0, nil, udp(b.addr4(), s4, 1000, portUDP, large(1500-28)))))
	must(t, err)
	select {
	case s := <-got:
		if len(s) != 1500-28 {
			t.Errorf("%d bytes reached the server", len(s))
		}
	case <-time.After(patience):
		t.Error("a frame of the largest size did not reach the server")
	}
}

// total is how much was denied for whatever reason.
func total(t *testing.T, b *box) (n uint64) {
	c, err := b.w.dp.Counters(b.slot)
	must(t, err)
	for _, x := range c.Denied {
		n += x
	}
	return n
}

// TestLyingHeaders: machines' queues have no headers before their frames, so that a guest says nothing of checksums and
// segments: what looks like one is the beginning of a frame of nobody. And where an interface has them, as root in a
// container may ask of its own, no lie opens what the policy does not.
func TestLyingHeaders(t *testing.T) {
	w := newWorld(t, datapath.OpenEBPF)
	good, bad := udpServer(t, w.internet, at(site4, portUDP)), udpServer(t, w.internet, at(other4, portUDP))
	p, s4, o4 := w.router.Plan(), netip.MustParseAddr(site4), netip.MustParseAddr(other4)
	gw := p.GatewayMAC()
	header := func(flags, gso uint8, hdrLen, size, start, offset uint16) []byte {
		h := []byte{flags, gso}
		for _, v := range []uint16{hdrLen, size, start, offset} {
			h = binary.NativeEndian.AppendUint16(h, v)
		}
		return h
	}
	const needsChecksum, tcp4, udpFragments, tcp6, udpSegments, ecn = 1, 1, 3, 4, 5, 0x80
	lies := [][]byte{
		header(needsChecksum, 0, 0, 0, 14, 6), header(needsChecksum, 0, 0, 0, 0xffff, 0xffff), header(needsChecksum, tcp4, 54, 1, 34, 16),
		header(0, tcp4, 54, 1, 0, 0), header(needsChecksum, udpFragments, 42, 8, 34, 6), header(0, udpFragments, 42, 1400, 0, 0),
		header(needsChecksum, tcp6, 54, 1, 34, 16), header(needsChecksum, udpSegments, 42, 1, 34, 6), header(needsChecksum, udpSegments, 42, 1400, 34, 6),
		header(needsChecksum, tcp4|ecn, 0xffff, 0xffff, 34, 16), header(0, ecn, 0, 1, 0, 0), header(0xff, 0xff, 1, 1, 1, 1),
	}
	frames := func(slot int) map[string][]byte {
		me, a, stolen := p.MAC(slot), p.Address4(slot), p.Address4(slot+1)
		out := map[string][]byte{}
		for _, n := range []int{4, 1400, 60000} {
			body := string(make([]byte, n))
			out[fmt.Sprintf("%d bytes to another server", n)] = eth(gw, me, 0x0800, ip4(a, o4, 17, 0, nil, udp(a, o4, 1000, portUDP, body)))
			out[fmt.Sprintf("%d bytes from another", n)] = eth(gw, me, 0x0800, ip4(stolen, s4, 17, 0, nil, udp(stolen, s4, 1000, portUDP, body)))
			out[fmt.Sprintf("%d bytes by another's hardware address", n)] = eth(gw, p.MAC(slot+1), 0x0800, ip4(a, s4, 17, 0, nil, udp(a, s4, 1000, portUDP, body)))
		}
		return out
	}
	for _, headers := range []bool{false, true} {
		b := &box{w: w, slot: 41}
		if headers {
			b.slot = 43
			b.queue = headerTap(t, w, b.slot)
		} else {
			var err error
			b.queue, err = w.router.MakeTap(b.slot)
			must(t, err)
			t.Cleanup(func() { b.queue.Close() })
		}
		must(t, w.dp.Attach(b.slot, datapath.Attachment{Index: link.Index(b.slot)}))
		b.set(allow(site4 + "/32"))
		for name, f := range frames(b.slot) {
			for _, h := range lies {
				before := total(t, b)
				if _, err := b.queue.Write(append(h, f...)); err != nil {
					continue // the kernel sees that it is a lie
				}
				within(t, fmt.Sprintf("%s after header %x is denied", name, h), func() bool { return total(t, b) > before })
			}
		}
		frame := eth(gw, p.MAC(b.slot), 0x0800, ip4(b.addr4(), s4, 17, 0, nil, udp(b.addr4(), s4, 1000, portUDP, "good")))
		if headers {
			frame = append(make([]byte, 10), frame...)
		}
		_, err := b.queue.Write(frame)
		must(t, err)
		select {
		case s := <-good:
			if s != "good" {
				t.Errorf("%q reached the server", s)
			}
		case <-time.After(patience):
			t.Fatal("an ordinary frame did not reach the server")
		}
	}
	select {
	case s := <-bad:
		t.Errorf("%d bytes reached the other server", len(s))
	default:
	}
}

// headerTap makes a slot's tap whose frames have headers.
func headerTap(t *testing.T, w *world, slot int) *os.File {
	const setIndex, setInterface, tap, plain, withHeader = 0x400454da, 0x400454ca, 0x2, 0x1000, 0x4000
	var fd int
	must(t, w.router.Do(func() (err error) {
		if fd, err = syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC, 0); err != nil {
			return err
		}
		index := uint32(link.Index(slot))
		var request [40]byte
		copy(request[:], fmt.Sprintf("s%d", slot))
		binary.NativeEndian.PutUint16(request[16:], tap|plain|withHeader)
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), setIndex, uintptr(unsafe.Pointer(&index))); e != 0 {
			return e
		}
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), setInterface, uintptr(unsafe.Pointer(&request))); e != 0 {
			return e
		}
		return nil
	}))
	f := os.NewFile(uintptr(fd), "tap")
	t.Cleanup(func() { f.Close() })
	p, index := w.router.Plan(), link.Index(slot)
	must(t, w.router.Apply(linux.ChangeLink(index, p.GatewayMAC(), 1500, nil), linux.UpLink(index),
		linux.AddRoute(linux.RouteTo{To: netip.PrefixFrom(p.Address4(slot), 32), Index: index, From: p.Gateway4()})))
	return f
}
