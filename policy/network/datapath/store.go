package datapath

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/opendsec/dsec/sandbox"
)

// store keeps policies in the kernel, each content once: a thousand sandboxes of one job have one. A new content costs
// a trie and a grace period of the kernel; a known one nothing.
type store struct {
	k *kernel

	mu       sync.Mutex // guards all below
	policies map[[sha256.Size]byte]*policy
	byNumber map[uint32]*policy
	lists    map[string]*storedList
	byList   map[uint32]*storedList
	next     uint32 // number of the next policy or list
	spares   []spare
	gone     []uint32 // policies that nobody has any more, to be removed

	wake chan struct{} // to the keeper
	stop chan struct{}
	wg   sync.WaitGroup
}

// spare is an empty policy that is in the kernel already: to put one in, or to take one out, the kernel waits for a grace
// period (10 ms and more), to fill one not. The keeper does the waiting.
type spare struct {
	number uint32
	trie   *ebpf.Map
}

const (
	spares     = 32
	tooBig     = 65536 // prefixes of a policy
	keepPeriod = time.Second
)

type policy struct {
	number uint32
	digest [sha256.Size]byte
	refs   int
	lists  []*storedList
	ready  chan struct{} // closed when the kernel has it
	err    error
}

type storedList struct {
	number uint32
	key    string
	refs   int
}

func newStore(k *kernel) *store {
	return &store{k: k, policies: map[[sha256.Size]byte]*policy{}, byNumber: map[uint32]*policy{}, lists: map[string]*storedList{}, byList: map[uint32]*storedList{}, next: 1,
		wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// acquire gives a policy with the content of t, which the caller releases.
func (s *store) acquire(t *table) (*policy, error) {
	digest := t.digest()
	s.mu.Lock()
	p := s.policies[digest]
	if p != nil {
		p.refs++
		s.mu.Unlock()
		<-p.ready
		if p.err != nil {
			s.release(p)
		}
		return p, p.err
	}
	var from spare
	if n := len(s.spares); n > 0 {
		from, s.spares = s.spares[n-1], s.spares[:n-1]
	} else {
		from.number = s.next
		s.next++
	}
	p = &policy{number: from.number, digest: digest, refs: 1, ready: make(chan struct{})}
	s.policies[digest] = p
	s.byNumber[p.number] = p
	numbers := make([]uint32, len(t.lists))
	for i, l := range t.lists {
		var stored *storedList
		if stored, p.err = s.acquireListLocked(l); p.err != nil {
			break
		}
		numbers[i] = stored.number
		p.lists = append(p.lists, stored)
	}
	s.mu.Unlock()
	if p.err == nil {
		p.err = s.write(from, t.prefixes, numbers)
	}
	close(p.ready)
	s.poke()
	if p.err != nil {
		s.release(p)
		return nil, p.err
	}
	return p, nil
}

func (s *store) write(to spare, prefixes []netip.Prefix, numbers []uint32) error {
	if len(prefixes) > tooBig {
		return fmt.Errorf("a policy of %d prefixes, at most %d are possible: %w", len(prefixes), tooBig, sandbox.ErrInvalid)
	}
	made := to.trie == nil
	if made {
		var err error
		if to.trie, err = s.empty(); err != nil {
			return err
		}
	}
	defer to.trie.Close()
	keys := make([]wirePrefix, len(prefixes))
	for i, p := range prefixes {
		keys[i] = prefixOf(p)
	}
	if _, err := to.trie.BatchUpdate(keys, numbers, nil); err != nil {
		return fmt.Errorf("write a policy of %d prefixes: %w", len(prefixes), err)
	}
	if !made {
		return nil
	}
	if err := s.k.Policies.Put(to.number, to.trie); err != nil {
		return fmt.Errorf("store a policy: %w", full(err))
	}
	return nil
}

func (s *store) empty() (*ebpf.Map, error) {
	spec := s.k.trie.Copy()
	spec.Name = "policy"
	spec.MaxEntries = tooBig
	trie, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make a policy: %w", err)
	}
	return trie, nil
}

// full makes a table that has no room an exhausted resource.
func full(err error) error {
	if errors.Is(err, errFull) {
		return fmt.Errorf("%w: %w", err, sandbox.ErrExhausted)
	}
	return err
}

// acquireList is acquire for the list of a learned address; it is never released, as addresses expire by themselves
// and sandboxes share few lists.
func (s *store) acquireList(l list) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := s.acquireListLocked(l)
	if err != nil {
		return 0, err
	}
	return stored.number, nil
}

func (s *store) acquireListLocked(l list) (*storedList, error) {
	key := l.key()
	if stored := s.lists[key]; stored != nil {
		stored.refs++
		return stored, nil
	}
	stored := &storedList{number: s.next, key: key, refs: 1}
	w := wireRules{Count: uint32(len(l))}
	copy(w.Rule[:], l)
	if err := s.k.Lists.Put(stored.number, &w); err != nil {
		return nil, fmt.Errorf("store a list of ports: %w", full(err))
	}
	s.next++
	s.lists[key] = stored
	s.byList[stored.number] = stored
	return stored, nil
}

func (s *store) release(p *policy) {
	if p == nil {
		return
	}
	s.mu.Lock()
	p.refs--
	if p.refs > 0 {
		s.mu.Unlock()
		return
	}
	if s.policies[p.digest] == p {
		delete(s.policies, p.digest)
	}
	delete(s.byNumber, p.number)
	s.gone = append(s.gone, p.number)
	var lists []uint32
	for _, l := range p.lists {
		if l.refs--; l.refs == 0 {
			delete(s.lists, l.key)
			delete(s.byList, l.number)
			lists = append(lists, l.number)
		}
	}
	s.mu.Unlock()
	s.poke()
	// Numbers are not used again, so that what is gone is not there, rather than something else.
	for _, n := range lists {
		_ = s.k.Lists.Delete(n)
	}
}

// adopt finds what an earlier process stored. used counts the slots of each policy; policies without one are removed.
func (s *store) adopt(used map[uint32]int, learned map[uint32]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lists := map[uint32]list{}
	var n uint32
	var w wireRules
	for it := s.k.Lists.Iterate(); ; {
		if !it.Next(&n, &w) {
			if err := it.Err(); err != nil {
				return fmt.Errorf("read lists: %w", err)
			}
			break
		}
		lists[n] = slices.Clone(w.Rule[:min(w.Count, maxRules)])
		s.next = max(s.next, n+1)
	}
	var numbers []uint32
	var id ebpf.MapID
	for it := s.k.Policies.Iterate(); ; {
		if !it.Next(&n, &id) {
			if err := it.Err(); err != nil {
				return fmt.Errorf("read policies: %w", err)
			}
			break
		}
		numbers = append(numbers, n)
		s.next = max(s.next, n+1)
	}
	for n, l := range lists {
		if learned[n] {
			stored := &storedList{number: n, key: l.key(), refs: 1}
			s.lists[stored.key], s.byList[n] = stored, stored
		}
	}
	for _, n := range numbers {
		if used[n] == 0 {
			s.gone = append(s.gone, n)
			continue
		}
		if err := s.adoptPolicy(n, used[n], lists); err != nil {
			return err
		}
	}
	for n := range lists {
		if s.byList[n] == nil {
			_ = s.k.Lists.Delete(n)
		}
	}
	return nil
}

func (s *store) adoptPolicy(n uint32, refs int, lists map[uint32]list) error {
	var trie *ebpf.Map
	if err := s.k.Policies.Lookup(n, &trie); err != nil {
		return fmt.Errorf("read policy %d: %w", n, err)
	}
	defer trie.Close()
	p := &policy{number: n, refs: refs, ready: make(chan struct{})}
	close(p.ready)
	t := &table{}
	var key wirePrefix
	var number uint32
	it := trie.Iterate()
	for it.Next(&key, &number) {
		l, ok := lists[number]
		if !ok {
			return fmt.Errorf("policy %d names a list that is gone", n)
		}
		stored := s.byList[number]
		if stored == nil {
			stored = &storedList{number: number, key: l.key()}
			s.byList[number] = stored
			if s.lists[stored.key] == nil {
				s.lists[stored.key] = stored
			}
		}
		stored.refs++
		p.lists = append(p.lists, stored)
		t.prefixes = append(t.prefixes, key.prefix())
		t.lists = append(t.lists, l)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read policy %d: %w", n, err)
	}
	t.sort()
	p.digest = t.digest()
	s.byNumber[n] = p
	if s.policies[p.digest] == nil {
		s.policies[p.digest] = p
	}
	return nil
}
