package datapath_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// TestConcurrent makes, changes and removes sandboxes side by side, while one that stays keeps its connection, and the
// sweep runs all the time.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, datapath.OpenEBPF, func(c *datapath.Config) { c.Sweep = time.Millisecond })
	server(t, w.internet, portTCP)
	stays := w.sandbox(100)
	stays.set(allow(site4 + "/32"))
	c, err := dial(stays.NetSpace, "tcp", at(site4, portTCP))
	must(t, err)
	defer c.Close()
	life := func(slot, round int) error {
		s, err := linux.NewNetSpace()
		if err != nil {
			return err
		}
		defer s.Close()
		if err := w.router.Make(slot, s.File()); err != nil {
			return err
		}
		if err := w.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)}); err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make(chan error, 100)
		for g := range uint64(10) {
			wg.Go(func() {
				err := w.dp.Set(slot, g+1, []network.Entry{allow(site4 + "/32"), entry("20.0.0.0/8", network.TCP, uint16(slot+round), 65535, network.VerdictAllow)})
				if err != nil && !errors.Is(err, sandbox.ErrConflict) {
					errs <- err
				}
				err = w.dp.Learn(slot, g+1, netip.MustParseAddr(other4), []network.Opening{{Protocol: network.TCP, From: 1, To: 9, Verdict: network.VerdictAllow}}, time.Now().Add(time.Minute))
				if err != nil && !errors.Is(err, sandbox.ErrConflict) {
					errs <- err
				}
				_, err = w.dp.Flows(slot)
				errs <- err
				_, err = w.dp.Counters(slot)
				errs <- err
			})
		}
		wg.Wait()
		close(errs)
		for e := range errs {
			err = errors.Join(err, e)
		}
		if g, gerr := w.dp.Generation(slot); gerr != nil || g != 10 {
			err = errors.Join(err, gerr, fmt.Errorf("generation %d in force, want 10", g))
		}
		conn, derr := dial(s, "tcp", at(site4, portTCP))
		if derr == nil {
			derr = echoes(conn, "hello")
			conn.Close()
		}
		return errors.Join(err, derr, w.dp.Clear(slot), w.router.Remove(slot))
	}
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for round := range 8 {
				if err := life(worker, round); err != nil {
					t.Errorf("slot %d: %v", worker, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := echoes(c, "still here"); err != nil {
		t.Error(err)
	}
	if got := w.dp.Slots(); len(got) != 1 || got[0] != 100 {
		t.Errorf("slots %v", got)
	}
}

// TestSweep ends flows of sandboxes that are gone, and addresses that have expired.
func TestSweep(t *testing.T) {
	w := newWorld(t, datapath.OpenEBPF, func(c *datapath.Config) { c.Sweep = time.Millisecond })
	b := w.sandbox(1)
	b.set()
	openings := []network.Opening{{Protocol: network.TCP, From: 1, To: 9, Verdict: network.VerdictAllow}}
	learn := func(n int, d time.Duration) (full bool) {
		for i := range n {
			err := w.dp.Learn(1, 1, netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), openings, time.Now().Add(d))
			if errors.Is(err, sandbox.ErrExhausted) {
				return true
			}
			must(t, err)
		}
		return false
	}
	if !learn(datapath.LearnedAddresses+1, 2*time.Second) {
		t.Fatal("no bound")
	}
	within(t, "there is room again once some expired", func() bool {
		return !learn(1, time.Hour) && w.dp.Learn(1, 1, netip.MustParseAddr("21.0.0.1"), openings, time.Now().Add(time.Hour)) == nil
	})
}
