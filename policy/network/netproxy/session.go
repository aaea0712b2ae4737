package netproxy

import (
	"net"
	"sync"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// maxWaiting is how many events may wait for an edge: one that is slow, or none.
const maxWaiting = 4096

// session is an edge that is connected.
type session struct {
	conn     net.Conn
	programs map[uint64]compiled // by the edge's number; the reader's alone
	calls    sync.WaitGroup
	quit     chan struct{} // closed when nothing is read any more
	ended    chan struct{} // closed when all is over

	mu     sync.Mutex
	known  map[string]bool // sandboxes that the edge has said that it has
	out    []frame
	events int // in out
	lost   map[string]int
	wake   chan struct{}
}

type compiled struct {
	*network.Program
	err error
}

func newSession(c net.Conn) *session {
	return &session{conn: c, programs: map[uint64]compiled{}, known: map[string]bool{}, lost: map[string]int{},
		quit: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// push says something to the edge, after all that was pushed before. Of events, those that are too many are counted.
func (s *session) push(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Event != nil {
		if s.events >= maxWaiting {
			s.lost[f.Event.Key] += 1 + f.Event.Suppressed
			return
		}
		f.Event.Suppressed += s.lost[f.Event.Key]
		delete(s.lost, f.Event.Key)
		s.events++
	}
	s.out = append(s.out, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take is all that is to be said. What could not be said is put back.
func (s *session) take() []frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.out
	s.out, s.events = nil, 0
	return out
}

func (s *session) putBack(f []frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(f, s.out...)
}

// flush says what there is now.
func (s *session) flush() bool {
	f := s.take()
	if len(f) == 0 {
		return true
	}
	if err := write(s.conn, f...); err != nil {
		s.putBack(f)
		s.conn.Close()
		return false
	}
	return true
}

// writeAll says what is pushed until the connection or the session ends.
func (s *session) writeAll() {
	for {
		select {
		case <-s.quit:
			return
		case <-s.wake:
			if !s.flush() {
				return
			}
		}
	}
}

func (s *session) knows(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[key]
}

// know notes that the edge has a sandbox, and returns what was kept of it.
func (s *session) know(key string, from *keeper) []proxy.Event {
	s.mu.Lock()
	s.known[key] = true
	s.mu.Unlock()
	return from.take(key)
}

func (s *session) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
	delete(s.lost, key)
}

// keeper keeps events for an edge that is to come. The zero value is empty.
type keeper struct {
	of   map[string][]proxy.Event
	n    int
	lost map[string]int
}

func (k *keeper) keep(e proxy.Event) {
	if k.of == nil {
		k.of, k.lost = map[string][]proxy.Event{}, map[string]int{}
	}
	if k.n >= maxWaiting {
		k.lost[e.Key] += 1 + e.Suppressed
		return
	}
	k.n++
	k.of[e.Key] = append(k.of[e.Key], e)
}

func (k *keeper) take(key string) []proxy.Event {
	out := k.of[key]
	k.n -= len(out)
	if n := len(out); n > 0 {
		out[n-1].Suppressed += k.lost[key]
	}
	delete(k.of, key)
	delete(k.lost, key)
	return out
}

func (k *keeper) drop(key string) { k.take(key) }
