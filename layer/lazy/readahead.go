package lazy

import (
	"math/bits"
	"sync"
)

const (
	// maxStreams is how many sequential readers of one layer are told apart.
	maxStreams = 8
	// maxWindow is how far ahead of a reader chunks are fetched, chunks.
	maxWindow = 16
	// diskWindow is the same of chunks that are in the node's cache: enough to keep the disk and the processor busy at the
	// same time.
	diskWindow = 8
	// How far out of order a stream's requests may come, chunks: the kernel has several under way.
	slackAhead, slackBehind = 4, 16
)

// streams follows the sequential readers of one layer.
type streams struct {
	mu   sync.Mutex
	all  [maxStreams]stream
	last int // index, the next to be replaced
}

type stream struct {
	next  int    // chunk behind the last one that was read
	ahead int    // chunk up to which was fetched ahead
	warm  int    // chunk up to which was read ahead from the disk, if it is there
	seen  uint64 // which chunks before next were read, the lowest bit is the last one; 0 = free
}

// span is a range of chunks: from <= n < to.
type span struct{ from, to int }

// note takes a read of chunks first to last and returns what should be read ahead: of chunks that must be fetched, and of those
// that are on the node's disk. The window is half of what was read in a row: who reads here and there in small files, as
// programs do that import, is no such reader, and of what is fetched a third at most is for nothing.
func (s *streams) note(first, last, chunks int) (fetch, disk span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.all {
		st := &s.all[i]
		if st.seen == 0 || first < st.next-slackBehind || first > st.next+slackAhead {
			continue
		}
		if n := last + 1 - st.next; n > 0 {
			st.seen <<= min(n, 64)
			st.next = last + 1
		}
		for n := first; n <= last; n++ {
			if at := st.next - 1 - n; at < 64 {
				st.seen |= 1 << at
			}
		}
		window := min(bits.TrailingZeros64(^st.seen)/2, maxWindow)
		fetch = span{max(st.next, st.ahead), min(st.next+window, chunks)}
		disk = span{max(st.next, st.warm), min(st.next+min(window, diskWindow), chunks)}
		// In pieces worth a request: half a window, or to the end.
		if fetch.to-fetch.from < (window+1)/2 && fetch.to < chunks {
			fetch = span{}
		}
		st.ahead, st.warm = max(st.ahead, fetch.to), max(st.warm, disk.to)
		return fetch, disk
	}
	s.all[s.last] = stream{next: last + 1, seen: 1<<min(last-first+1, 63) - 1}
	s.last = (s.last + 1) % maxStreams
	return span{}, span{}
}

// readAhead brings what a sequential reader will want. It never waits.
func (s *source) readAhead(l *attached, first, last int) {
	fetch, disk := l.streams.note(first, last, len(l.keys))
	for n := disk.from; n < disk.to; n++ {
		if s.cache.Has(l.keys[n]) {
			s.begin(l, n, n, true)
		}
	}
	for n := fetch.from; n < fetch.to; n++ {
		if s.cache.Has(l.keys[n]) {
			continue
		}
		end := n + 1
		for end < fetch.to && !s.cache.Has(l.keys[end]) {
			end++
		}
		s.begin(l, n, end-1, true)
		n = end
	}
}
