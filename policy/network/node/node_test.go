package node_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// TestTakeOver: a process goes away and another takes over. Packets are judged meanwhile; names and checked connections
// come back with the rules.
func TestTakeOver(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		site := w.inet.Site("one.example")
		echo := w.echo(site.V4[0])
		w.set(site.V4[0].String()+":8080/tcp", "one.example")
		c := w.dial(echo)
		if err := say(c, "before", 6); err != nil {
			t.Fatal(err)
		}
		if got, err := w.get(w.client("ip4"), "https://one.example/"); err != nil {
			t.Fatalf("%q %v", got, err)
		}
		kind := w.Kind()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := say(c, "meanwhile", 9); err != nil {
			t.Errorf("an allowed connection, while nobody serves: %v", err)
		}
		if err := w.refused("tcp", netip.AddrPortFrom(site.V4[0], 8081)); err == nil {
			t.Error("what is denied is open while nobody serves")
		}
		w.cfg.Enforcer = "" // it keeps to what the links are under
		w.open()
		if w.Kind() != kind {
			t.Errorf("%s took over from %s", w.Kind(), kind)
		}
		if _, err := w.lookup(t.Context(), "ip4", "one.example"); err == nil {
			t.Error("a name resolves before its sandbox is known again")
		}
		w.set(site.V4[0].String()+":8080/tcp", "one.example")
		if err := say(c, "after", 5); err != nil {
			t.Errorf("an allowed connection, after the other took over: %v", err)
		}
		if got, err := w.get(w.client("ip6"), "https://one.example/"); err != nil || !strings.HasPrefix(got, "site=one.example") {
			t.Errorf("%q %v", got, err)
		}
		if err := w.Set(slot, key, w.gen-1, w.compile("open")); !errors.Is(err, sandbox.ErrConflict) {
			t.Errorf("an older generation: %v", err)
		}
	})
}

// TestKinds: another kind of datapath takes over only where no link is under the first.
func TestKinds(t *testing.T) {
	w := start(t, datapath.Nftables)
	echo := w.echo(w.inet.Site("one.example").V4[0])
	w.set(echo.String() + "/tcp")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := w.cfg
	cfg.Enforcer = datapath.EBPF
	n, err := node.Open(cfg, nil)
	if err == nil {
		_ = n.Close()
	}
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.Skip(err)
	}
	if !errors.Is(err, sandbox.ErrFailedPrecondition) || !strings.Contains(err.Error(), "under nftables: end them first") {
		t.Errorf("another kind under a link: %v", err)
	}
	cfg.Enforcer = "iptables"
	if n, err := node.Open(cfg, nil); err == nil {
		_ = n.Close()
		t.Error("an unknown kind is taken")
	} else if !strings.Contains(err.Error(), "want ebpf or nftables") {
		t.Errorf("an unknown kind: %v", err)
	}
	w.open()
	if err := w.refused("tcp", echo); err != nil {
		t.Errorf("the link after the refusals: %v", err)
	}
	if err := w.Sweep(link.Containers, func(int) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.cfg.Enforcer = datapath.EBPF
	w.open()
	if w.Kind() != datapath.EBPF || len(w.Lacks()) != 0 {
		t.Errorf("%s, without %q", w.Kind(), w.Lacks())
	}
	w.attach(slot, w.sandbox)
	if err := w.refused("tcp", echo); err == nil {
		t.Error("a new link is open")
	}
	w.gen = 0
	w.set(echo.String() + "/tcp")
	if err := w.refused("tcp", echo); err != nil {
		t.Errorf("under the other kind: %v", err)
	}
}

// TestRefused: what a caller may not ask for, and that it changes nothing.
func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		echo := w.echo(w.inet.Site("one.example").V4[0])
		w.gen = 4
		w.set(echo.String() + "/tcp")
		open := w.compile("none")
		for name, c := range map[string]struct {
			err  error
			want error
		}{
			"an older generation":            {w.Set(slot, key, 4, open), sandbox.ErrConflict},
			"another policy of the same":     {w.Set(slot, key, 5, open), sandbox.ErrConflict},
			"another sandbox's slot":         {w.Set(slot, "other", 6, open), sandbox.ErrConflict},
			"a slot without a link":          {w.Set(slot+1, "other", 1, open), sandbox.ErrNotFound},
			"attaching a slot beyond":        {w.Attach(link.Slots, w.file(w.sandbox), nil), sandbox.ErrExhausted},
			"attaching a slot below":         {w.Attach(-1, w.file(w.sandbox), nil), sandbox.ErrExhausted},
			"detaching what is not there":    {w.Detach(slot + 9), nil},
			"sweeping what all want to keep": {w.Sweep(link.Containers, func(int) bool { return true }), nil},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: %v, want %v", name, c.err, c.want)
			}
		}
		if err := w.refused("tcp", echo); err != nil {
			t.Errorf("after all the refusals: %v", err)
		}
		w.set(echo.String()+"/tcp", "one.example") // generation 6
	})
}

// TestDetach: nothing passes a slot that was given back, and the next sandbox of the slot inherits nothing.
func TestDetach(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		site := w.inet.Site("one.example")
		echo := w.echo(site.V4[0])
		w.set("one.example", "one.example:8080/tcp")
		if _, err := w.get(w.client("ip4"), "http://one.example/"); err != nil {
			t.Fatal(err)
		}
		direct, checked := w.dial(echo), w.dial(netip.AddrPortFrom(site.V4[0], 80))
		const request = "GET / HTTP/1.1\r\nHost: one.example\r\n\r\n"
		if err := errors.Join(say(direct, "x", 1), say(checked, request, 100)); err != nil {
			t.Fatal(err)
		}
		if err := w.Detach(slot); err != nil {
			t.Fatal(err)
		}
		_ = direct.SetDeadline(aMoment())
		if _, err := direct.Write([]byte("x")); err == nil {
			if _, err := direct.Read(make([]byte, 1)); err == nil {
				t.Error("a connection goes on without its slot")
			}
		}
		if err := w.refused("tcp", echo); err == nil {
			t.Error("a link is open without its slot")
		}
		next := networktest.NewNamespace(t)
		w.sandbox = next
		w.attach(slot, next)
		if err := w.Set(slot, "next", 1, w.compile("two.example")); err != nil {
			t.Fatal(err)
		}
		if err := w.refused("tcp", echo); err == nil {
			t.Error("the next sandbox has the addresses of the last")
		}
		if _, err := w.lookup(t.Context(), "ip4", "one.example"); err == nil {
			t.Error("the next sandbox has the names of the last")
		}
	})
}

// TestEvents: what every part of the network tells, under the sandbox's key.
func TestEvents(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		site := w.inet.Site("one.example", networktest.V4(1))
		w.inet.DNS.Host("inward.example", 60, networktest.MetadataV4)
		w.set("one.example", "inward.example", "!two.example")
		_, _ = w.lookup(t.Context(), "ip4", "two.example")
		_, _ = w.lookup(t.Context(), "ip4", "inward.example")
		if _, err := w.get(w.client("ip4"), "https://one.example/"); err != nil {
			t.Fatal(err)
		}
		_ = w.refused("tcp", netip.AddrPortFrom(site.V4[0], 22))
		wrong := w.inet.Client(w.sandbox, func(string) string { return netip.AddrPortFrom(site.V4[0], 443).String() })
		_, _ = w.get(wrong, "https://three.example/")
		for what, want := range map[string]node.Event{
			"of a denied name":       {Kind: "denied_name", Name: "two.example", Rule: "!two.example"},
			"of an inward answer":    {Kind: "denied", Name: "inward.example"},
			"of a checked one's end": {Kind: "ended", Name: "one.example", Remote: netip.AddrPortFrom(site.V4[0], 443)},
			"of a denied port":       {Kind: "denied", Remote: netip.AddrPortFrom(site.V4[0], 22), Why: "policy"},
			"of a wrong name":        {Kind: "denied", Name: "three.example", Remote: netip.AddrPortFrom(site.V4[0], 443)},
		} {
			e := w.event(what, func(e node.Event) bool {
				return e.Kind == want.Kind && (want.Name == "" || e.Name == want.Name) && (!want.Remote.IsValid() || e.Remote == want.Remote)
			})
			if e.Key != key || e.Time.IsZero() || want.Rule != "" && e.Rule != want.Rule || want.Why != "" && e.Why != want.Why {
				t.Errorf("%s: %+v", what, e)
			}
			if want.Kind == "ended" && (e.Sent == 0 || e.Received == 0) {
				t.Errorf("%s: %+v", what, e)
			}
		}
	})
}

// TestSweep: links of sandboxes that ended while nobody served go, others stay.
func TestSweep(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		echo := w.echo(w.inet.Site("one.example").V4[0])
		w.set(echo.String() + "/tcp")
		w.attach(slot+1, networktest.NewNamespace(t))
		w.attach(slot+2, networktest.NewNamespace(t))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.open()
		if err := w.Sweep(link.Containers, func(s int) bool { return s == slot }); err != nil {
			t.Fatal(err)
		}
		if err := w.Set(slot+1, "gone", 1, w.compile("open")); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("a slot that was swept: %v", err)
		}
		w.set(echo.String() + "/tcp")
		if err := w.refused("tcp", echo); err != nil {
			t.Errorf("the one that was kept: %v", err)
		}
	})
}

// TestRemove: what a process left is taken away by one that serves nothing.
func TestRemove(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.set("open")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Network = nil
		if err := w.host.Do(func() error { return node.Remove(w.cfg.Dir) }); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(w.cfg.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", w.cfg.Dir, err)
		}
		w.nothingLeft()
		if err := node.Remove(w.cfg.Dir); err != nil { // there is nothing any more
			t.Error(err)
		}
		if err := node.Remove(filepath.Join(t.TempDir(), "never")); err != nil {
			t.Error(err)
		}
	})
}

// TestResolverDown: what is allowed fails within a bound, and what is denied is told at once; it comes back by itself.
func TestResolverDown(t *testing.T) {
	w := start(t, datapath.EBPF)
	w.inet.Site("one.example")
	w.set("one.example")
	w.inet.DNS.Down(true)
	if _, err := w.lookup(t.Context(), "ip4", "one.example"); err == nil || strings.Contains(err.Error(), "no such host") {
		t.Errorf("without a resolver: %v", err)
	}
	w.event("of a name that could not be resolved", func(e node.Event) bool { return e.Kind == "failed" && e.Name == "one.example" && e.Why != "" })
	if _, err := w.lookup(t.Context(), "ip4", "two.example"); err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("a denied name without a resolver: %v", err)
	}
	w.inet.DNS.Down(false)
	eventually(t, "the name resolves again", func() bool {
		_, err := w.lookup(t.Context(), "ip4", "one.example")
		return err == nil
	})
}
