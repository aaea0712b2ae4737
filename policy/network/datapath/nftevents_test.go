package datapath_test

import (
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
)

// TestNftablesEnded: connections that the kernel forgets are told with their bytes, those to the resolver are not.
func TestNftablesEnded(t *testing.T) {
	needRoot(t)
	needTool(t, "nftables")
	w := newWorld(t, datapath.OpenNftables)
	if !w.dp.Capabilities().EndedEvents {
		t.Fatal("this kernel tells no ends of connections")
	}
	server(t, w.internet, portTCP)
	must(t, w.router.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", []byte("1"), 0)
	}))
	b := w.sandbox(21)
	b.set(allow(site4+"/32"), allow(site6+"/128"))
	want := map[netip.AddrPort]bool{}
	for _, a := range []string{site4, site6} {
		c, err := dial(b.NetSpace, "tcp", at(a, portTCP))
		must(t, err)
		must(t, echoes(c, "0123456789"))
		must(t, c.Close())
		want[netip.MustParseAddrPort(at(a, portTCP))] = true
	}
	if c, err := dial(b.NetSpace, "udp", at(w.router.Plan().Gateway4().String(), datapath.DNSPort)); err == nil {
		_, _ = io.WriteString(c, "x")
		c.Close()
	}
	within(t, "both ends are told", func() bool {
		if _, err := w.dp.Flows(b.slot); err != nil { // looking at them makes the kernel forget those whose time is over
			t.Fatal(err)
		}
		select {
		case ev := <-w.dp.Events():
			if ev.Kind != datapath.Ended {
				t.Fatalf("event %+v", ev)
			}
			if !want[ev.Remote] || ev.Slot != b.slot || ev.Protocol != network.TCP || ev.LocalPort == 0 || ev.Flow == nil ||
				!ev.Flow.Closed || ev.Flow.BytesOut < 10 || ev.Flow.BytesIn < 10 || ev.Flow.Generation != b.gen {
				t.Fatalf("event %+v, flow %+v", ev, ev.Flow)
			}
			delete(want, ev.Remote)
		default:
		}
		return len(want) == 0
	})
	// What is left of a sandbox is not told as the next one's.
	c, err := dial(b.NetSpace, "tcp", at(site4, portTCP))
	must(t, err)
	must(t, echoes(c, "x"))
	c.Close()
	must(t, w.dp.Clear(21))
	must(t, w.router.Remove(21))
	next := w.sandbox(21)
	next.set(allow(site4 + "/32"))
	next.refused("tcp", at(other4, portTCP))
	within(t, "the next one's denial", func() bool {
		select {
		case ev := <-w.dp.Events():
			if ev.Kind == datapath.Ended {
				t.Fatalf("told of another's: %+v, flow %+v", ev, ev.Flow)
			}
			return ev.Kind == datapath.Denied && ev.Slot == 21 && ev.Reason == datapath.ByPolicy && ev.Remote == netip.MustParseAddrPort(at(other4, portTCP))
		default:
			return false
		}
	})
}
