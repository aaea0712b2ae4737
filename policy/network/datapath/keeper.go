package datapath

import (
	"time"

	"github.com/cilium/ebpf"
)

// start starts the keeper: it makes spare policies and removes those that are gone, many at once.
func (s *store) start() {
	s.wg.Go(func() {
		retry := time.NewTicker(keepPeriod)
		defer retry.Stop()
		for {
			s.keep()
			select {
			case <-s.stop:
				return
			case <-s.wake:
			case <-retry.C:
			}
		}
	})
}

// close ends the keeper. What is gone and not removed yet is removed by the next to adopt.
func (s *store) close() {
	close(s.stop)
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.spares {
		_ = sp.trie.Close()
	}
	s.spares = nil
}

func (s *store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *store) keep() {
	s.mu.Lock()
	gone := s.gone
	s.gone = nil
	missing := spares - len(s.spares)
	first := s.next
	if missing < spares/2 {
		missing = 0
	}
	s.next += uint32(missing)
	s.mu.Unlock()
	if len(gone) > 0 {
		if _, err := s.k.Policies.BatchDelete(gone, nil); err != nil {
			for _, n := range gone { // one that is not there ends a batch
				_ = s.k.Policies.Delete(n)
			}
		}
	}
	var made []spare
	for i := range missing {
		trie, err := s.empty()
		if err != nil {
			break // whoever needs a policy makes one, and has the error
		}
		made = append(made, spare{first + uint32(i), trie})
	}
	made = s.insert(made)
	s.mu.Lock()
	s.spares = append(s.spares, made...)
	s.mu.Unlock()
}

// insert puts policies into the kernel, and returns those that it took.
func (s *store) insert(made []spare) []spare {
	if len(made) == 0 {
		return nil
	}
	numbers, fds := make([]uint32, len(made)), make([]uint32, len(made))
	for i, sp := range made {
		numbers[i], fds[i] = sp.number, uint32(sp.trie.FD())
	}
	n, err := s.k.Policies.BatchUpdate(numbers, fds, &ebpf.BatchOptions{})
	if err == nil {
		return made
	}
	for _, sp := range made[n:] {
		_ = sp.trie.Close()
	}
	return made[:n]
}
