package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// errFull is what the kernel says of a hash without room.
const errFull = syscall.E2BIG

// engine is the datapath in eBPF.
type engine struct {
	cfg    Config
	log    *slog.Logger
	k      *kernel
	store  *store
	events *events
	token  atomic.Uint32 // the last one given
	slots  [link.Slots]slotState
	sweep  sweeper

	forbidMu sync.Mutex // guards forbidden
	banned   map[wirePrefix]bool
}

// slotState is what userland knows of a slot; records hold what of it must be known again after a restart.
type slotState struct {
	mu      sync.Mutex // guards all below
	rec     wireRecord
	policy  *policy
	learned [2]int // addresses, by token
}

const answerMark = 0xd5ec03

func (c Config) bpf() string { return filepath.Join(c.Dir, "bpf") }

// OpenEBPF opens the datapath in eBPF: what an earlier process left is taken over, its policies included. It is
// sandbox.ErrUnsupported where the kernel refuses the programs.
func OpenEBPF(cfg Config) (Datapath, error) {
	e, err := openEngine(cfg)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func openEngine(cfg Config) (*engine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Sweep == 0 {
		cfg.Sweep = 10 * time.Second
	}
	plan := cfg.Router.Plan()
	banned, err := forbidden(cfg.Router, cfg.Forbidden)
	if err != nil {
		return nil, err
	}
	e := &engine{cfg: cfg, log: cfg.Log, banned: map[wirePrefix]bool{}}
	var adopted bool
	e.k, adopted, err = openKernel(cfg.bpf(), wireConfig{
		Gateway4: addrOf(plan.Gateway4()), Gateway6: addrOf(plan.Gateway6()), Pool4: prefixOf(plan.Pool4).Addr, Mask4: prefixOf(plan.Pool4).mask(), Pool6: prefixOf(plan.Pool6).Addr, Mask6: prefixOf(plan.Pool6).mask(),
		ProxyMark: link.ProxyMark, AnswerMark: answerMark, PassMark: link.PassMark, ProxyPort: cfg.ProxyPort, DNSPort: DNSPort,
		GatewayMAC: plan.GatewayMAC(), MTU: uint16(cfg.Router.MTU()),
	})
	if err != nil {
		return nil, fmt.Errorf("open the datapath: %w", errors.Join(err, linux.UnmountBPF(cfg.bpf())))
	}
	e.store = newStore(e.k)
	if err = e.readForbidden(); err == nil {
		err = e.forbid(banned)
	}
	if err == nil && adopted {
		err = e.adopt()
	}
	if err == nil {
		err = e.reattach()
	}
	if err == nil {
		e.events, err = e.readEvents()
	}
	if err != nil {
		e.k.close()
		if !adopted {
			err = errors.Join(err, linux.UnmountBPF(cfg.bpf()))
		}
		return nil, fmt.Errorf("open the datapath: %w", err)
	}
	e.store.start()
	e.startSweep()
	return e, nil
}

func (e *engine) Kind() string { return EBPF }

func (e *engine) Capabilities() Capabilities {
	return Capabilities{DenialEvents: true, EndedEvents: true, EarlyRefusal: true, Neighbours: true, EveryReason: true, QuickChanges: true}
}

// reattach puts this version's programs on all links and on the uplink, and removes what other versions pinned.
func (e *engine) reattach() error {
	slots, err := e.cfg.Router.Slots()
	if err != nil {
		return err
	}
	if up := e.cfg.Router.UplinkIndex(); up != 0 {
		if err := e.cfg.Router.Apply(e.k.hooks(up, "from_uplink", "to_uplink")...); err != nil {
			return err
		}
	}
	for _, slot := range slots {
		// A link that is just being removed is its remover's affair.
		if err := e.cfg.Router.Apply(e.k.hooks(link.Index(slot), "from_sandbox", "to_sandbox")...); err != nil && !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
	return e.k.removeOthers(e.cfg.bpf())
}

// attached locks a slot that is attached. The caller unlocks it.
func (e *engine) attached(slot int) (*slotState, error) {
	if err := checkSlot(slot); err != nil {
		return nil, err
	}
	s := &e.slots[slot]
	s.mu.Lock()
	if s.rec.Port == 0 {
		s.mu.Unlock()
		return nil, fmt.Errorf("slot %d is not attached: %w", slot, sandbox.ErrNotFound)
	}
	return s, nil
}

func (e *engine) Attach(slot int, a Attachment) error {
	if err := checkSlot(slot); err != nil {
		return err
	}
	if a.Index <= 0 || a.Index >= ports {
		return fmt.Errorf("attach slot %d: interface %d: give an index below %d: %w", slot, a.Index, ports, sandbox.ErrInvalid)
	}
	s := &e.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Port != 0 {
		return fmt.Errorf("slot %d is attached: %w", slot, sandbox.ErrAlreadyExists)
	}
	n := uint32(slot)
	lease := s.rec.Lease + link.Slots // wraps after 262,144 sandboxes of one slot
	if lease%link.Slots != n {
		lease = n
	}
	rec := wireRecord{Port: uint32(a.Index), Lease: lease}
	plan := e.cfg.Router.Plan()
	w := wireSlot{Addr4: addrOf(plan.Address4(slot)), Addr6: addrOf(plan.Address6(slot)), MAC: plan.MAC(slot), Lease: lease, MaxFlows: DefaultFlows}
	e.k.current.Store(slot, 0)
	for i := range stateWords {
		e.k.states.Store(slot*stateWords+i, 0)
	}
	e.k.states.Store(slot*stateWords+stateSwept, uint64(linux.Monotonic()))
	if err := e.k.Slots.Put(n, &w); err != nil {
		return fmt.Errorf("attach slot %d: %w", slot, err)
	}
	err := e.cfg.Router.Apply(e.k.hooks(a.Index, "from_sandbox", "to_sandbox")...)
	if err == nil && a.Group != nil && a.Space != nil {
		if rec.Space, err = e.cookie(a.Space); err == nil {
			err = e.k.attachGroup(a.Group)
		}
		if err == nil {
			err = e.k.Spaces.Put(rec.Space, n)
		}
	}
	if err == nil {
		err = e.k.Records.Put(n, &rec)
	}
	if err == nil {
		err = e.k.Ports.Put(rec.Port, n+1)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attach slot %d: %w", slot, err), e.forget(slot, rec))
	}
	s.rec = rec
	return nil
}

func (e *engine) cookie(space *os.File) (c uint64, err error) {
	err = e.cfg.Router.Within(space, func() error {
		c, err = linux.NetSpaceCookie()
		return err
	})
	return c, err
}

// forget takes a slot out of the maps that lead packets to it; the rest follows when it is used again or swept.
func (e *engine) forget(slot int, rec wireRecord) error {
	var errs []error
	errs = append(errs, e.k.Ports.Put(rec.Port, uint32(0)))
	if rec.Space != 0 {
		if err := e.k.Spaces.Delete(rec.Space); err != nil && !isNoKey(err) {
			errs = append(errs, err)
		}
	}
	e.k.current.Store(slot, 0)
	errs = append(errs, e.k.Records.Put(uint32(slot), &wireRecord{Lease: rec.Lease}))
	return errors.Join(errs...)
}

func (e *engine) Clear(slot int) error {
	s, err := e.attached(slot)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := errors.Join(e.forget(slot, s.rec), e.join(slot, Group{})); err != nil {
		return fmt.Errorf("clear slot %d: %w", slot, err)
	}
	e.store.release(s.policy)
	s.policy, s.learned, s.rec = nil, [2]int{}, wireRecord{Lease: s.rec.Lease}
	return nil
}

func (e *engine) Set(slot int, generation uint64, entries []network.Entry) error {
	t, err := makeTable(entries)
	if err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	if generation == 0 {
		return fmt.Errorf("policy of slot %d: generations begin at 1: %w", slot, sandbox.ErrInvalid)
	}
	s, err := e.attached(slot)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	if generation < s.rec.Generation[0] {
		return fmt.Errorf("policy of slot %d: generation %d is in force, %d is older: %w", slot, s.rec.Generation[0], generation, sandbox.ErrConflict)
	}
	if generation == s.rec.Generation[0] {
		if s.policy.digest == t.digest() {
			return nil
		}
		return fmt.Errorf("policy of slot %d: another one of generation %d is in force: %w", slot, generation, sandbox.ErrConflict)
	}
	p, err := e.store.acquire(t)
	if err != nil {
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	rec := s.rec
	ahead := s.learned[1]
	if rec.Generation[1] != generation {
		rec.Generation[1], rec.Token[1] = generation, e.token.Add(1)
		ahead = 0
	}
	// Whoever comes after a kill between these steps knows by the token which of the two holds.
	if err := e.k.Records.Put(uint32(slot), &rec); err != nil {
		e.store.release(p)
		return fmt.Errorf("policy of slot %d: %w", slot, err)
	}
	e.k.current.Store(slot, uint64(rec.Token[1])<<32|uint64(p.number))
	rec.Generation[0], rec.Token[0], rec.Generation[1], rec.Token[1] = generation, rec.Token[1], 0, 0
	if err := e.k.Records.Put(uint32(slot), &rec); err != nil {
		e.log.Warn("a slot's record is behind", "slot", slot, "err", err)
	}
	e.store.release(s.policy)
	s.policy, s.rec, s.learned = p, rec, [2]int{ahead, 0}
	return nil
}

func (e *engine) Generation(slot int) (uint64, error) {
	s, err := e.attached(slot)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	return s.rec.Generation[0], nil
}

func (e *engine) Slots() []int {
	var out []int
	for i := range e.slots {
		s := &e.slots[i]
		s.mu.Lock()
		if s.rec.Port != 0 {
			out = append(out, i)
		}
		s.mu.Unlock()
	}
	return out
}

func (e *engine) Limit(slot int, l network.Limits) error {
	s, err := e.attached(slot)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	var w wireSlot
	n := uint32(slot)
	if err := e.k.Slots.Lookup(n, &w); err != nil {
		return fmt.Errorf("limits of slot %d: %w", slot, err)
	}
	w.OutCost, w.InCost, w.Burst, w.MaxFlows = 0, 0, 0, maxFlows(l)
	if l.Bandwidth > 0 {
		w.OutCost = max(1, uint64(time.Second)*1024/l.Bandwidth)
		w.InCost = w.OutCost
		// The kernel hands over up to 64 KiB of a connection at once: less would let nothing pass.
		w.Burst = max(uint64(200*time.Millisecond), 192*w.OutCost)
	}
	if err := e.k.Slots.Put(n, &w); err != nil {
		return fmt.Errorf("limits of slot %d: %w", slot, err)
	}
	return nil
}

func (e *engine) Join(slot int, group Group) error {
	s, err := e.attached(slot)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	return e.join(slot, group)
}

// join is Join of a slot that is locked.
func (e *engine) join(slot int, group Group) error {
	var w wireSlot
	n := uint32(slot)
	if err := e.k.Slots.Lookup(n, &w); err != nil {
		return fmt.Errorf("private network of slot %d: %w", slot, err)
	}
	w.Group = [2]uint64{binary.BigEndian.Uint64(group[:8]), binary.BigEndian.Uint64(group[8:])}
	if err := e.k.Slots.Put(n, &w); err != nil {
		return fmt.Errorf("private network of slot %d: %w", slot, err)
	}
	return nil
}

func (e *engine) Counters(slot int) (Counters, error) {
	s, err := e.attached(slot)
	if err != nil {
		return Counters{}, err
	}
	s.mu.Unlock()
	word := func(i int) uint64 { return e.k.states.Load(slot*stateWords + i) }
	c := Counters{BytesOut: word(stateOutBytes), PacketsOut: word(stateOutPackets), BytesIn: word(stateInBytes), PacketsIn: word(stateInPackets),
		EventsLost: word(stateEventsLost), Live: int(max(0, int32(word(stateLive)))), Denied: map[Reason]uint64{}}
	for r := range reasons {
		if n := word(stateDenied + r); n > 0 {
			c.Denied[Reason(r)] = n
		}
	}
	return c, nil
}

func (e *engine) readForbidden() error {
	var k wirePrefix
	var v uint32
	it := e.k.Forbidden.Iterate()
	for it.Next(&k, &v) {
		e.banned[k] = true
	}
	return it.Err()
}

func (e *engine) Forbid(prefixes []netip.Prefix) error {
	all, err := forbidden(e.cfg.Router, prefixes)
	if err != nil {
		return err
	}
	return e.forbid(all)
}

func (e *engine) forbid(all []netip.Prefix) error {
	e.forbidMu.Lock()
	defer e.forbidMu.Unlock()
	want := map[wirePrefix]bool{}
	for _, p := range all {
		k := prefixOf(p)
		want[k] = true
		if e.banned[k] {
			continue
		}
		if err := e.k.Forbidden.Put(&k, uint32(1)); err != nil {
			return fmt.Errorf("forbid %s: %w", p, full(err))
		}
		e.banned[k] = true
	}
	for k := range e.banned {
		if want[k] {
			continue
		}
		if err := e.k.Forbidden.Delete(&k); err != nil && !isNoKey(err) {
			return fmt.Errorf("no longer forbid %s: %w", k.prefix(), err)
		}
		delete(e.banned, k)
	}
	return nil
}

// isForbidden tells whether an address is never allowed.
func (e *engine) isForbidden(a netip.Addr) bool {
	var v uint32
	return e.k.Forbidden.Lookup(&wirePrefix{Len: 128, Addr: addrOf(a)}, &v) == nil
}

func (e *engine) Events() <-chan Event { return e.events.out }

func (e *engine) Lost() uint64 { return e.events.lost.Load() }

func (e *engine) Close() error {
	e.stopSweep()
	e.store.close()
	err := e.events.close()
	e.k.close()
	return err
}

// Destroy detaches nothing from links: their programs drop everything once the ports are unknown, and go with them.
func (e *engine) Destroy() error {
	var errs []error
	for _, slot := range e.Slots() {
		errs = append(errs, e.Clear(slot))
	}
	up := e.cfg.Router.UplinkIndex()
	if up != 0 {
		errs = append(errs, e.cfg.Router.Apply(linux.RemoveHooks(up)))
	}
	errs = append(errs, e.Close(), linux.UnmountBPF(e.cfg.bpf()))
	return errors.Join(errs...)
}
