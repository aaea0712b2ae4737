package node_test

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
)

// guest is a namespace behind a machine's tap: frames go between its interface and the queue, as a machine's do.
func (w *world) guest(slot int) (g *networktest.Namespace, end func()) {
	w.t.Helper()
	queue, err := w.AttachTap(slot)
	if err != nil {
		w.t.Fatal(err)
	}
	g = networktest.NewNamespace(w.t)
	var nic *os.File
	to := w.End(slot)
	err = g.Do(func() (err error) {
		if nic, err = linux.OpenTap(link.Inside, 0); err != nil {
			return err
		}
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		index, err := linux.LinkIndex(link.Inside)
		if err != nil {
			return err
		}
		return r.Apply(append([]linux.Request{linux.UpLink(1), linux.ChangeLink(index, to.MAC, to.MTU, nil)}, to.Requests(index)...)...)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	pump := func(from, to *os.File) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			_, _ = to.Write(buf[:n])
		}
	}
	wg.Go(func() { pump(queue, nic) })
	wg.Go(func() { pump(nic, queue) })
	end = sync.OnceFunc(func() {
		queue.Close()
		nic.Close()
		wg.Wait()
	})
	w.t.Cleanup(end)
	return g, end
}

// TestTap: a machine's names, checked connections, changes, private network and end are a container's; both ranges are
// swept apart.
func TestTap(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		site := w.inet.Site("one.example", networktest.V4(1), networktest.V6(1))
		w.inet.Site("other.example", networktest.V4(1), networktest.V6(1))
		slot := link.MicroVMs.From
		g, end := w.guest(slot)
		contained := w.sandbox
		w.sandbox = g // whose questions and connections are looked at
		set := func(generation uint64, rules ...string) {
			t.Helper()
			if err := w.Set(slot, "machine", generation, w.compile(rules...)); err != nil {
				t.Fatal(err)
			}
		}
		set(1, "one.example")
		for _, family := range []string{"ip4", "ip6"} {
			if body, err := w.get(w.client(family), "http://one.example/"); err != nil || body == "" {
				t.Errorf("by name over %s: %q, %v", family, body, err)
			}
			if _, err := w.lookup(t.Context(), family, "other.example"); err == nil {
				t.Errorf("a denied name is known over %s", family)
			}
		}
		if err := w.refused("tcp", netip.AddrPortFrom(site.V4[0], 8080)); err == nil {
			t.Error("another port is open")
		}
		w.event("of a denied name", func(e node.Event) bool {
			return e.Key == "machine" && e.Kind == "denied_name" && e.Name == "other.example"
		})
		w.event("of a denied connection", func(e node.Event) bool {
			return e.Key == "machine" && e.Kind == "denied" && e.Remote.Addr() == site.V4[0] && e.Remote.Port() == 8080
		})
		// A change cuts what it forbids.
		echo := w.echo(site.V4[0])
		set(2, echo.String()+"/tcp")
		c := w.dial(echo)
		if err := say(c, "hello", 5); err != nil {
			t.Fatal(err)
		}
		set(3, "none")
		if err := say(c, "hello", 5); err == nil {
			t.Error("a forbidden connection goes on")
		}
		if err := w.refused("tcp", echo); err == nil {
			t.Error("a forbidden connection is made")
		}
		// It meets a container in a private network, by name.
		if err := w.Join(slot, "machine", "job", "vm"); err != nil {
			t.Fatal(err)
		}
		if err := w.Join(3, key, "job", "box"); err != nil {
			t.Fatal(err)
		}
		w.set("none")
		ln, err := contained.Listen("tcp", ":7000")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				go func() {
					_, _ = io.Copy(c, c)
					c.Close()
				}()
			}
		}()
		addrs, err := w.lookup(t.Context(), "ip", "box")
		if err != nil || len(addrs) != 2 {
			t.Fatalf("box is %v, %v", addrs, err)
		}
		for _, a := range addrs {
			if err := say(w.dial(netip.AddrPortFrom(a.Unmap(), 7000)), "hello", 5); err != nil {
				t.Errorf("to %s: %v", a, err)
			}
		}
		// Containers' sweep leaves machines alone.
		if err := w.Sweep(link.Containers, func(s int) bool { return s == 3 }); err != nil {
			t.Fatal(err)
		}
		if got := w.Known(); !slices.Contains(got, "machine") {
			t.Errorf("after the containers' sweep: %q", got)
		}
		end()
		w.Part(slot)
		if err := w.Detach(slot); err != nil {
			t.Fatal(err)
		}
		if got := w.Known(); slices.Contains(got, "machine") || !slices.Contains(got, key) {
			t.Errorf("after the end: %q", got)
		}
		// The next of the slot begins with nothing; a killed node's are swept.
		next, _ := w.guest(slot)
		w.sandbox = next
		if err := w.refused("tcp", echo); err == nil {
			t.Error("the next of the slot has its predecessor's rules")
		}
		if err := w.Sweep(link.MicroVMs, func(int) bool { return false }); err != nil {
			t.Fatal(err)
		}
		w.sandbox = contained
	})
}
