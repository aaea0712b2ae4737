package network

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// limited makes a sandbox with limits.
func (w *world) limited(t *testing.T, l *dsecv1.NetworkLimits, allow ...string) *box {
	t.Helper()
	return w.made(t, &dsecv1.SandboxSpec{NetworkRules: rules(allow), NetworkLimits: l})
}

// made makes a sandbox whose network the spec describes.
func (w *world) made(t *testing.T, s *dsecv1.SandboxSpec) *box {
	t.Helper()
	s.Environment = &dsecv1.Environment{Base: base, Toolkits: []string{"probe"}}
	s.Limits = &dsecv1.Limits{MemoryBytes: 512 << 20, CpuMillis: 2000, Pids: 256, DiskBytes: 128 << 20, ShmBytes: 16 << 20}
	made, err := w.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: s})
	if err != nil {
		t.Fatal(err)
	}
	return &box{w, t, made[0].GetId()}
}

// limit replaces the limits alone.
func (b *box) limit(l *dsecv1.NetworkLimits) {
	b.t.Helper()
	r, err := b.Client.Sandboxes.SetNetwork(b.t.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.id, KeepRules: true, Limits: l})
	if err != nil {
		b.t.Fatal(err)
	}
	if n := r.GetNetwork(); len(n.GetRules()) != 1 || n.GetLimits().GetConnections() != l.GetConnections() || n.GetGenerationApplied() != n.GetGenerationAsked() {
		b.t.Errorf("after a change of limits alone: %v", n)
	}
}

// testLimits: connections are counted, bytes take their time.
func testLimits(t *testing.T, w *world, s *sites) {
	flow := s.echo.at.String() + ":7000-7002/tcp"
	b := w.limited(t, &dsecv1.NetworkLimits{Connections: 3}, flow)
	defer b.stop()
	const open = `python3 -c '
import socket
held = []
try:
    while len(held) < 9:
        held.append(socket.create_connection(("%s", 7000), 20))
except OSError as e:
    pass
print(len(held))'`
	if got := b.sh(fmt.Sprintf(open, s.echo.at)); got != "3" {
		t.Errorf("%s connections are open at once, want 3", got)
	}
	b.limit(&dsecv1.NetworkLimits{Connections: 5})
	if got := b.sh(fmt.Sprintf(open, s.echo.at)); got != "5" {
		t.Errorf("%s connections are open at once, want 5", got)
	}
	b.limit(&dsecv1.NetworkLimits{})
	if got := b.sh(fmt.Sprintf(open, s.echo.at)); got != "9" {
		t.Errorf("%s connections are open at once, want all 9", got)
	}

	// What it receives and sends: less time than the bytes take at the limit is too little, beyond what is let through at
	// once (192 KiB; in nftables a second's worth more).
	ln, err := w.inet.Listen("tcp", netip.AddrPortFrom(s.echo.at, 7002).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const size, rate, least = 2 << 20, 512 << 10, 2.5
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.CopyN(io.Discard, c, size); err == nil {
					_, _ = c.Write(make([]byte, size))
				}
			}()
		}
	}()
	transfer := func() (sent, got float64) {
		t.Helper()
		out := b.sh(fmt.Sprintf(`python3 -c '
import socket, time
s = socket.create_connection(("%s", 7002), 20)
t = time.monotonic()
s.sendall(bytes(%d))
assert s.recv(1)
u = time.monotonic()
n = 1
while n < %d:
    n += len(s.recv(65536)) or exit("cut")
print(u - t, time.monotonic() - t)'`, s.echo.at, size, size))
		if _, err := fmt.Sscan(out, &sent, &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return sent, got
	}
	b.limit(&dsecv1.NetworkLimits{BandwidthBps: rate})
	if sent, both := transfer(); sent < least || both < 2*least {
		t.Errorf("%d bytes at %d a second took %.2f s to send, %.2f s with as many to receive: it takes at least %v s each", size, rate, sent, both, least)
	}
	b.limit(&dsecv1.NetworkLimits{})
	transfer()
	// A limit that lets no packet pass is refused.
	for _, bad := range []*dsecv1.NetworkLimits{{BandwidthBps: 10}, {BandwidthBps: -1}, {Connections: -1}, {Connections: 1 << 40}} {
		if _, err := w.Client.Sandboxes.SetNetwork(t.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.id, KeepRules: true, Limits: bad}); err == nil {
			t.Errorf("limits %v are taken", bad)
		}
	}
	if n := b.info().GetNetwork(); n.GetLimits().GetBandwidthBps() != 0 || n.GetRules()[0].GetTarget() != flow {
		t.Errorf("after what was refused: %v", n)
	}
	b.event("a connection over the limit", func(e *dsecv1.Event) bool {
		return e.GetType() == "network_denied" && e.GetMessage() == "too_many_flows" && e.GetAttributes()["remote"] == netip.AddrPortFrom(s.echo.at, 7000).String()
	})
}

func init() { cases = append(cases, more...) }

// more are the cases of limits and of private networks.
var more = []struct {
	name string
	test func(*testing.T, *world, *sites)
}{
	{"Limits", testLimits},
	{"Private", testPrivate}, {"Ends", testEnds},
}

// testEnds: the connections that a sandbox has when it ends are told of.
func testEnds(t *testing.T, w *world, s *sites) {
	b := w.box(t, s.echo.at.String()+":7000/tcp")
	b.talk(s.echo)
	b.stop()
	var kinds []string
	var sent string
	for _, e := range b.events() {
		kinds = append(kinds, e.GetType())
		if e.GetType() == "network_ended" && e.GetAttributes()["remote"] == netip.AddrPortFrom(s.echo.at, 7000).String() {
			sent = e.GetAttributes()["sent"]
		}
	}
	if n, err := strconv.Atoi(sent); err != nil || n < 3 || kinds[len(kinds)-1] != "ended" {
		t.Errorf("bytes sent are %q, events are %q", sent, kinds)
	}
}
