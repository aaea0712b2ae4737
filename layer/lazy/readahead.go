package lazy

import "sync"

const (
	// maxStreams is how many sequential readers of one layer are told apart.
	maxStreams = 8
	// maxWindow is how far ahead of a reader chunks are fetched, chunks.
	maxWindow = 16
	// slack is how far out of order a stream's requests may come, chunks: the kernel has several under way.
	slack = 4
)

// streams follows the sequential readers of one layer.
type streams struct {
	mu   sync.Mutex
	all  [maxStreams]stream
	last int // index, the next to be replaced
}

type stream struct {
	next   int // chunk that a reader who goes straight on wants next
	ahead  int // chunk up to which was fetched ahead
	window int // chunks; 0 = free
}

// note takes a read of chunks first to last and returns what should be fetched ahead: from <= n < to.
func (s *streams) note(first, last, chunks int) (from, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.all {
		st := &s.all[i]
		if st.window == 0 || first < st.next-slack || first > st.next+slack {
			continue
		}
		if last+1 > st.next {
			st.next = last + 1
			st.window = min(2*st.window, maxWindow)
		}
		from = max(st.next, st.ahead)
		to = min(st.next+st.window, chunks)
		// In pieces worth a request: half a window, or to the end.
		if to-from < st.window/2 && to < chunks || to <= from {
			return 0, 0
		}
		st.ahead = to
		return from, to
	}
	s.all[s.last] = stream{next: last + 1, ahead: last + 1, window: 1}
	s.last = (s.last + 1) % maxStreams
	return 0, 0
}

// diskWindow is how far ahead of a sequential reader chunks are read that are in the node's cache, chunks: enough to
// keep the disk and the processor busy at the same time.
const diskWindow = 8

// readAhead brings what a sequential reader will want. It never waits.
func (s *source) readAhead(l *attached, first, last int) {
	from, to := l.streams.note(first, last, len(l.keys))
	near := min(to, last+1+diskWindow)
	for n := from; n < to; {
		if !s.cache.Has(l.keys[n]) {
			end := n + 1
			for end < to && !s.cache.Has(l.keys[end]) {
				end++
			}
			s.begin(l, n, end-1, true)
			n = end
			continue
		}
		if n < near {
			s.begin(l, n, n, true)
		}
		n++
	}
}
