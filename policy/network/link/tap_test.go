package link

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// TestTap: a machine's link is there while its queue is open, with the gateway's hardware address, and leads to the machine.
func TestTap(t *testing.T) {
	r, _, _ := open(t)
	if _, err := r.MakeTap(Slots); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a slot beyond: %v", err)
	}
	q, err := r.MakeTap(5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.MakeTap(5); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("a slot that has a link: %v", err)
	}
	if err := r.Make(5, space(t).File()); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("a pair in the place of a tap: %v", err)
	}
	err = r.Do(func() error {
		i, err := net.InterfaceByIndex(Index(5))
		if err != nil {
			return err
		}
		if mac := r.Plan().GatewayMAC(); i.Name != "s5" || !slices.Equal(i.HardwareAddr, mac[:]) || i.MTU != r.MTU() || i.Flags&net.FlagUp == 0 {
			t.Errorf("it is %+v", i)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// What the router sends to the machine comes out of the queue, to the machine's hardware address.
	c, err := r.ListenPacket(netip.AddrPortFrom(r.Plan().Gateway4(), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.Plan().Address4(5), 9))); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 2048)
	for {
		n, err := q.Read(frame)
		if err != nil {
			t.Fatal(err)
		}
		if n == 47 && string(frame[42:47]) == "hello" {
			break
		}
	}
	if mac := r.Plan().MAC(5); !slices.Equal(frame[:6], mac[:]) {
		t.Errorf("the frame is for %x", frame[:6])
	}
	// Another process that has it open keeps it; the last one takes it along.
	other, err := linux.Duplicate(q)
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	if got, err := r.Slots(); err != nil || !slices.Equal(got, []int{5}) {
		t.Errorf("slots %v, %v", got, err)
	}
	other.Close()
	if got, err := r.Slots(); err != nil || len(got) != 0 {
		t.Errorf("slots after the end: %v, %v", got, err)
	}
	// The slot can be a container's next, and be taken away below whoever has a queue.
	if q, err = r.MakeTap(5); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := r.Remove(5); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Read(frame); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read of a link that is gone: %v", err)
	}
	if err := r.Make(5, space(t).File()); err != nil {
		t.Error(err)
	}
}
