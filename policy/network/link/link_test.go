package link

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

func root(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

// space makes a network namespace that ends with the test.
func space(t testing.TB) *linux.NetSpace {
	t.Helper()
	s, err := linux.NewNetSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// open makes a router whose uplink leads to a namespace that plays the host.
func open(t testing.TB) (*Router, Config, *linux.NetSpace) {
	t.Helper()
	root(t)
	host := space(t)
	up := DefaultUplink()
	up.Host = host.File()
	cfg := Config{Dir: t.TempDir(), Plan: DefaultPlan(), Uplink: up}
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Destroy(); err != nil {
			t.Error(err)
		}
		if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), cfg.Dir) {
			t.Error("the router's namespace is still mounted")
		}
	})
	return r, cfg, host
}

// unguard makes the router take what no datapath has marked.
func unguard(t testing.TB, r *Router) {
	t.Helper()
	c, err := connect(r.File())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	table := &nftables.Table{Name: "router", Family: nftables.TableFamilyINet}
	c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "input", Table: table}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestClosedWithoutDatapath: a link leads nowhere until a datapath is attached to it.
func TestClosedWithoutDatapath(t *testing.T) {
	r, _, host := open(t)
	sb := space(t)
	if err := r.Make(1, sb.File()); err != nil {
		t.Fatal(err)
	}
	l, err := r.Listen(netip.AddrPortFrom(r.Plan().Gateway4(), 80), false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var outside net.Listener
	err = host.Do(func() (err error) {
		outside, err = net.Listen("tcp", ":80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	for _, a := range []string{r.Plan().Gateway4().String(), DefaultUplink().Host4.Addr().String()} {
		err := sb.Do(func() error {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(a, "80"), 300*time.Millisecond)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil {
			t.Errorf("%s is reachable", a)
		}
	}
}

func TestPlan(t *testing.T) {
	p := DefaultPlan()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []int{0, 1, 255, 256, 4095, Slots - 1} {
		for _, a := range []netip.Addr{p.Address4(slot), p.Address6(slot), netip.AddrFrom16(p.Address4(slot).As16())} {
			if got, ok := p.SlotOf(a); !ok || got != slot {
				t.Errorf("slot of %s: %d, %v; want %d", a, got, ok, slot)
			}
		}
		if !p.Pool4.Contains(p.Address4(slot)) || !p.Pool6.Contains(p.Address6(slot)) {
			t.Errorf("slot %d lies outside of the pools", slot)
		}
	}
	for _, a := range []string{"100.127.128.1", "100.127.128.0", "100.127.255.255", "8.8.8.8", "fdd5:ec00::1", "fdd5:ec00::1:100", "fe80::1"} {
		if slot, ok := p.SlotOf(netip.MustParseAddr(a)); ok {
			t.Errorf("%s belongs to slot %d", a, slot)
		}
	}
	for _, bad := range []Plan{{}, {Pool4: netip.MustParsePrefix("10.0.0.0/18"), Pool6: p.Pool6}, {Pool4: netip.MustParsePrefix("10.0.0.1/8"), Pool6: p.Pool6}, {Pool4: p.Pool4, Pool6: netip.MustParsePrefix("fd00::/120")}} {
		if err := bad.Check(); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("plan %v: %v", bad, err)
		}
	}
}

// TestLinkReachesRouter makes links, and connects from the router to a sandbox by both families.
func TestLinkReachesRouter(t *testing.T) {
	r, _, _ := open(t)
	sb := space(t)
	if err := r.Make(5, sb.File()); err != nil {
		t.Fatal(err)
	}
	unguard(t, r)
	if err := r.Make(5, space(t).File()); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("a slot twice: %v", err)
	}
	if err := r.Make(6, sb.File()); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("two links in a sandbox: %v", err)
	}
	if err := r.Make(Slots, sb.File()); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a slot too many: %v", err)
	}
	for _, a := range []netip.Addr{r.Plan().Address4(5), r.Plan().Address6(5)} {
		var l net.Listener
		err := sb.Do(func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := r.Dial(ctx, l.Addr().(*net.TCPAddr).AddrPort())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		from := in.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		if want := r.Plan().Gateway4(); a.Is4() && from != want {
			t.Errorf("the router dials from %s, want %s", from, want)
		}
		if want := r.Plan().Gateway6(); a.Is6() && from != want {
			t.Errorf("the router dials from %s, want %s", from, want)
		}
		if _, err := io.WriteString(in, "x"); err != nil {
			t.Error(err)
		}
		in.Close()
		if b, err := io.ReadAll(c); err != nil || string(b) != "x" {
			t.Errorf("read %q, %v", b, err)
		}
	}
	if got, err := r.Slots(); err != nil || len(got) != 1 || got[0] != 5 {
		t.Errorf("slots %v, %v", got, err)
	}
}

// TestDialIsBounded dials an address whose answers are not let in.
func TestDialIsBounded(t *testing.T) {
	r, _, _ := open(t)
	if err := r.Make(3, space(t).File()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := r.Dial(ctx, netip.AddrPortFrom(r.Plan().Address4(3), 9))
		result <- err
	}()
	if err := r.Do(func() error { return nil }); err != nil { // the router's thread is free meanwhile
		t.Error(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAdoption closes a router as a kill does, and opens it again.
func TestAdoption(t *testing.T) {
	r, cfg, _ := open(t)
	a, b := space(t), space(t)
	for slot, s := range []*linux.NetSpace{a, b} {
		if err := r.Make(slot, s.File()); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got, err := again.Slots(); err != nil || len(got) != 2 {
		t.Fatalf("slots %v, %v", got, err)
	}
	gone, err := again.Sweep(func(slot int) bool { return slot == 1 })
	if err != nil || len(gone) != 1 || gone[0] != 0 {
		t.Errorf("swept %v, %v", gone, err)
	}
	if got, err := r.Slots(); err != nil || len(got) != 1 || got[0] != 1 {
		t.Errorf("slots %v, %v", got, err)
	}
}

// TestHalfMadeRouter finds the file of a router whose maker was killed before it bound the namespace to it.
func TestHalfMadeRouter(t *testing.T) {
	root(t)
	cfg := Config{Dir: t.TempDir(), Plan: DefaultPlan()}
	if err := os.WriteFile(cfg.file(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.file()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestManyLinks makes and removes links a thousand times, some by the end of the sandbox's namespace.
func TestManyLinks(t *testing.T) {
	r, _, host := open(t)
	const batch = 50
	n := 1000
	if testing.Short() {
		n = 100
	}
	start := time.Now()
	var making time.Duration
	for done := 0; done < n; done += batch {
		var spaces []*linux.NetSpace
		var slots []int
		for i := range batch {
			s, err := linux.NewNetSpace()
			if err != nil {
				t.Fatal(err)
			}
			spaces = append(spaces, s)
			began := time.Now()
			if err := r.Make(i, s.File()); err != nil {
				t.Fatal(err)
			}
			making += time.Since(began)
			if i%5 != 0 {
				slots = append(slots, i)
			}
		}
		if err := r.Remove(slots...); err != nil {
			t.Fatal(err)
		}
		for _, s := range spaces {
			s.Close()
		}
		// The kernel takes apart namespaces, and what lies in them, in its own time.
		for deadline := time.Now().Add(30 * time.Second); ; {
			left, err := r.Slots()
			if err != nil {
				t.Fatal(err)
			}
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("links are left: %v", left)
			}
			time.Sleep(time.Millisecond)
		}
	}
	t.Logf("%d links in %v, %v of it to make them", n, time.Since(start), making)
	r.mu.Lock()
	links, err := r.route.Links()
	r.mu.Unlock()
	if err != nil || len(links) != 2 {
		t.Errorf("interfaces of the router: %v, %v", links, err)
	}
	err = host.Do(func() error {
		ifs, err := net.Interfaces()
		if len(ifs) != 2 {
			t.Errorf("interfaces of the host: %v", ifs)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestUplinkOfAnother: a router whose uplink's name is taken says so, and takes nothing away from the one that has it.
func TestUplinkOfAnother(t *testing.T) {
	_, cfg, host := open(t)
	mine := cfg
	mine.Dir = t.TempDir()
	for range 2 {
		if _, err := Open(mine); !errors.Is(err, sandbox.ErrAlreadyExists) {
			t.Fatalf("a second router with the same uplink: %v", err)
		}
	}
	if _, err := Find(mine); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left a router: %v", err)
	}
	again, err := Find(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	err = host.Do(func() error {
		_, err := net.InterfaceByName(cfg.Uplink.Name)
		return err
	})
	if err != nil {
		t.Errorf("the first one's uplink: %v", err)
	}
	c, err := connect(host.File())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	if tables, err := c.ListTables(); err != nil || len(tables) != 1 {
		t.Errorf("the first one's rules at the host: %d tables, %v", len(tables), err)
	}
}
