package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
)

func isNoKey(err error) bool { return errors.Is(err, ebpf.ErrKeyNotExist) }

// each calls f with all entries of a hash. Entries that come or go meanwhile may be missed, or seen twice.
func each[K, V any](m *ebpf.Map, f func(K, *V)) error {
	const batch = 4096
	keys, values := make([]K, batch), make([]V, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (e *engine) flow(k wireFlowKey, w *wireFlow, present uint32, generation uint64) Flow {
	f := Flow{Protocol: protocolOf(k.Protocol), LocalPort: k.LocalPort, Remote: netip.AddrPortFrom(k.Remote.addr(), k.RemotePort),
		Inbound: w.Flags&flowInbound != 0, Proxied: w.Verdict == uint8(network.VerdictCheck), Closed: w.Flags&flowClosed != 0,
		First: wall(w.First), Last: wall(w.Last), BytesOut: w.OutBytes, BytesIn: w.InBytes, PacketsOut: w.OutPackets, PacketsIn: w.InPackets}
	if w.Token == present {
		f.Generation = generation
	}
	return f
}

func (e *engine) Flows(slot int) ([]Flow, error) {
	s, err := e.attached(slot)
	if err != nil {
		return nil, err
	}
	rec := s.rec
	s.mu.Unlock()
	seen := map[wireFlowKey]bool{}
	var out []Flow
	err = each(e.k.Flows, func(k wireFlowKey, w *wireFlow) {
		if k.Lease == rec.Lease && !seen[k] {
			seen[k] = true
			out = append(out, e.flow(k, w, rec.Token[0], rec.Generation[0]))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("flows of slot %d: %w", slot, err)
	}
	return out, nil
}

// sweeper collects flows that have ended and addresses that have expired.
type sweeper struct {
	stop chan struct{}
	wg   sync.WaitGroup
	over [link.Slots]int32 // flows that were counted too many, last time
}

func (e *engine) startSweep() {
	e.sweep.stop = make(chan struct{})
	e.sweep.wg.Go(func() {
		tick := time.NewTicker(e.cfg.Sweep)
		defer tick.Stop()
		for {
			select {
			case <-e.sweep.stop:
				return
			case <-tick.C:
			}
			if err := errors.Join(e.sweepFlows(), e.sweepLearned()); err != nil {
				e.log.Warn("sweep of the datapath", "err", err)
			}
		}
	})
}

func (e *engine) stopSweep() {
	close(e.sweep.stop)
	e.sweep.wg.Wait()
}

const (
	keepClosed = 120 * time.Second // late segments of a connection are still its own
	keepSilent = 180 * time.Second
	keepTCP    = 7440 * time.Second
)

func (w *wireFlow) ended(now uint64) bool {
	idle := time.Duration(now - min(w.Last, now))
	switch {
	case w.Flags&flowClosed != 0:
		return idle > keepClosed
	case w.Protocol == 6 && (w.InPackets > 0 || w.Flags&flowInbound != 0):
		return idle > keepTCP
	}
	return idle > keepSilent
}

func (e *engine) sweepFlows() error {
	now := uint64(linux.Monotonic())
	type ended struct {
		k wireFlowKey
		w wireFlow
	}
	var gone []ended
	live := map[uint32]int32{} // by lease
	var seen []wireFlowKey
	err := each(e.k.Flows, func(k wireFlowKey, w *wireFlow) {
		if w.ended(now) {
			gone = append(gone, ended{k, *w})
			return
		}
		seen = append(seen, k)
		if w.Flags&flowClosed == 0 {
			live[k.Lease]++
		}
	})
	if err != nil {
		return fmt.Errorf("read flows: %w", err)
	}
	// The leases are asked for after the flows: one that has a flow and is not among them is over, not yet to come.
	leases := e.leases()
	for _, k := range seen {
		if leases[int(k.Lease%link.Slots)] != k.Lease {
			gone = append(gone, ended{k: k})
		}
	}
	for _, g := range gone {
		slot := int(g.k.Lease % link.Slots)
		if err := e.k.Flows.Delete(&g.k); err != nil {
			continue // it was pushed out meanwhile, or seen twice
		}
		if leases[slot] != g.k.Lease {
			continue
		}
		if g.w.Flags&flowClosed == 0 {
			e.k.states.AddHalf(slot*stateWords+stateLive, 0, -1)
		}
		f := e.flow(g.k, &g.w, 0, 0)
		e.events.send(Event{Time: wall(now), Slot: slot, Kind: Ended, Protocol: f.Protocol, Number: g.k.Protocol, LocalPort: f.LocalPort, Remote: f.Remote, Inbound: f.Inbound, Flow: &f})
	}
	// Flows that the table pushed out for want of room are still counted: take off what was too much twice in a row.
	for slot, lease := range leases {
		if lease == 0 && slot != 0 {
			continue
		}
		e.k.states.Store(slot*stateWords+stateSwept, now)
		counted := int32(e.k.states.Load(slot*stateWords + stateLive))
		over := max(0, counted-live[lease])
		if fix := min(over, e.sweep.over[slot]); fix > 0 {
			e.k.states.AddHalf(slot*stateWords+stateLive, 0, -fix)
			over -= fix
		}
		e.sweep.over[slot] = over
	}
	return nil
}

// leases are those of the attached slots.
func (e *engine) leases() map[int]uint32 {
	out := map[int]uint32{}
	for i := range e.slots {
		s := &e.slots[i]
		s.mu.Lock()
		if s.rec.Port != 0 {
			out[i] = s.rec.Lease
		}
		s.mu.Unlock()
	}
	return out
}

func (e *engine) sweepLearned() error {
	now := uint64(linux.Monotonic())
	youngest := e.token.Load() // first: tokens that are given meanwhile are not in the list
	tokens := map[uint32]int{} // to slots
	for i := range e.slots {
		s := &e.slots[i]
		s.mu.Lock()
		for _, t := range s.rec.Token {
			if t != 0 {
				tokens[t] = i
			}
		}
		s.mu.Unlock()
	}
	var gone []wireLearnedKey
	err := each(e.k.Learned, func(k wireLearnedKey, w *wireLearned) {
		if _, ok := tokens[k.Token]; ok && w.expired(now) || !ok && int32(k.Token-youngest) <= 0 {
			gone = append(gone, k)
		}
	})
	if err != nil {
		return fmt.Errorf("read learned addresses: %w", err)
	}
	for _, k := range gone {
		slot, ok := tokens[k.Token]
		if !ok {
			_ = e.k.Learned.Delete(&k)
			continue
		}
		e.dropExpired(slot, k, now)
	}
	return nil
}

func (w *wireLearned) expired(now uint64) bool {
	for _, until := range w.Until {
		if until > now {
			return false
		}
	}
	return true
}

func (e *engine) dropExpired(slot int, k wireLearnedKey, now uint64) {
	s := &e.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	var w wireLearned
	if err := e.k.Learned.Lookup(&k, &w); err == nil && w.expired(now) { // it may have been learned anew
		if e.k.Learned.Delete(&k) != nil {
			return
		}
		for i, t := range s.rec.Token {
			if t == k.Token {
				s.learned[i]--
			}
		}
	}
}
