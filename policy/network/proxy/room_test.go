package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// TestRoom: where there is no room for more, a sandbox with fewer connections than another gets it from that one, which loses
// what was silent for longest and is told; among those that have as many, nobody does.
func TestRoom(t *testing.T) {
	const most = 4
	n := start(t, func(c *Config) {
		c.MaxConns = most
		whose := c.Origin
		c.Origin = func(nc net.Conn) (Flow, error) { // a site is one sandbox's
			f, err := whose(nc)
			f.Key = f.Destination.Addr().String()
			return f, err
		}
	})
	n.set("greedy.example", "modest.example")
	greedy, modest := n.inet.Site("greedy.example", networktest.V4(1)), n.inet.Site("modest.example", networktest.V4(1))
	n.answer("greedy.example", greedy.V4...)
	n.answer("modest.example", modest.V4...)
	ask := func(c net.Conn, name string) error {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name); err != nil {
			return err
		}
		b := make([]byte, 4096)
		k, err := c.Read(b)
		if err == nil && !strings.HasPrefix(string(b[:k]), "HTTP/1.1 200 ") {
			err = fmt.Errorf("answered %q", b[:k])
		}
		return err
	}
	open := func(a netip.Addr, name string) net.Conn {
		c := n.dial(a, 80)
		if err := ask(c, name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return c
	}
	var held []net.Conn
	for range most {
		held = append(held, open(greedy.V4[0], "greedy.example"))
	}
	gone := func(c net.Conn) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); err == nil {
			t.Error("what gave way has ended well")
		} else if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Error("what should give way goes on")
		}
	}
	if err := ask(held[0], "greedy.example"); err != nil { // now the second is silent for longest
		t.Fatal(err)
	}
	m1 := open(modest.V4[0], "modest.example")
	gone(held[1])
	if e := n.waitEvent(Limited); e.Key != greedy.V4[0].String() || e.Why != gaveWay || e.Name != "greedy.example" || e.Received == 0 {
		t.Errorf("%+v", e)
	}
	m2 := open(modest.V4[0], "modest.example")
	gone(held[2])
	// Two each: the next has to wait.
	for name, a := range map[string]netip.Addr{"greedy.example": greedy.V4[0], "modest.example": modest.V4[0]} {
		if c, err := n.sandbox.Dial(t.Context(), "tcp", netip.AddrPortFrom(a, 80).String()); err == nil {
			if err := ask(c, name); err == nil {
				t.Errorf("%s: one more than there is room for", name)
			}
			c.Close()
		}
	}
	for i, c := range []net.Conn{held[0], held[3]} {
		if err := ask(c, "greedy.example"); err != nil {
			t.Errorf("%d of those that had room: %v", i, err)
		}
	}
	for i, c := range []net.Conn{m1, m2} {
		if err := ask(c, "modest.example"); err != nil {
			t.Errorf("%d of the other sandbox: %v", i, err)
		}
	}
	n.stop()
	if len(n.server.having) != 0 || n.server.giving != 0 || len(n.server.conns) != 0 {
		t.Errorf("after the end: %d sandboxes, %d give way, %d connections", len(n.server.having), n.server.giving, len(n.server.conns))
	}
}

// TestRoomFiles: as many connections as there may be leave descriptors for the rest of the process.
func TestRoomFiles(t *testing.T) {
	s, err := New(Config{Origin: Transparent(nil), Program: func(string) (*network.Program, bool) { return nil, false },
		Answered: func(string, string, netip.Addr) bool { return false }, Dial: func(context.Context, Flow) (net.Conn, error) { return nil, net.ErrClosed }})
	if err != nil {
		t.Fatal(err)
	}
	files, err := linux.FileLimit()
	if err != nil {
		t.Fatal(err)
	}
	if need := uint64(s.cfg.MaxConns) * 6; need >= files || s.cfg.MaxConns < 1 {
		t.Errorf("%d connections need %d descriptors of %d", s.cfg.MaxConns, need, files)
	}
}
