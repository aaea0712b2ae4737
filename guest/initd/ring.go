package initd

import (
	"sync"

	"golang.org/x/sys/unix"
)

// ring holds the bytes of a stream between two offsets, in memory outside the Go heap that exists only while
// there is something to hold. It starts with one page and grows up to its limit as the budget allows.
type ring struct {
	b          []byte
	base       int64 // offset that lies at b[0]
	start, end int64 // offsets of the bytes held: [start, end)
	limit      int   // bytes; a power of two times the page size
	budget     *budget
}

// budget bounds the memory of all rings beyond their first page, in bytes.
type budget struct {
	mu        sync.Mutex
	used, max int
	spare     []byte // one page kept for the next small ring
}

// take reserves size bytes and returns a spare page when there is one.
func (b *budget) take(size int) (spare []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if size == page {
		spare, b.spare = b.spare, nil
		return spare, true
	}
	if b.used+size > b.max {
		return nil, false
	}
	b.used += size
	return nil, true
}

// give returns memory; it reports whether it was kept as the spare page.
func (b *budget) give(mem []byte, size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > page {
		b.used -= size
	} else if b.spare == nil && mem != nil {
		b.spare = mem
		return true
	}
	return false
}

const page = 4096

func (r *ring) len() int    { return int(r.end - r.start) }
func (r *ring) empty() bool { return r.end == r.start }

// space is a contiguous piece to put bytes into, nil when the ring is full. commit then adds n of them.
func (r *ring) space(want int) []byte {
	if r.b == nil {
		if !r.alloc(page) {
			return nil
		}
		r.base = r.end
	}
	for len(r.b)-r.len() < want && len(r.b) < r.limit && r.grow() {
	}
	free := len(r.b) - r.len()
	if free == 0 {
		return nil
	}
	at := int(r.end-r.base) % len(r.b)
	return r.b[at:min(at+free, len(r.b))]
}

func (r *ring) commit(n int) { r.end += int64(n) }

// put copies p in and reports how much fitted.
func (r *ring) put(p []byte) int {
	total := 0
	for len(p) > 0 {
		s := r.space(len(p))
		n := copy(s, p)
		if n == 0 {
			break
		}
		r.commit(n)
		total += n
		p = p[n:]
	}
	return total
}

// at returns the contiguous bytes from an offset on.
func (r *ring) at(off int64) []byte {
	if off >= r.end || off < r.start || r.b == nil {
		return nil
	}
	at := int(off-r.base) % len(r.b)
	return r.b[at:min(at+int(r.end-off), len(r.b))]
}

// drop forgets the bytes below an offset; an empty ring gives its memory back.
func (r *ring) drop(off int64) {
	if off > r.start {
		r.start = min(off, r.end)
	}
	if r.empty() {
		r.free()
	}
}

func (r *ring) free() {
	if r.b == nil {
		return
	}
	if !r.budget.give(r.b, len(r.b)) {
		_ = unix.Munmap(r.b)
	}
	r.b = nil
	r.start = r.end
}

func (r *ring) alloc(size int) bool {
	spare, ok := r.budget.take(size)
	if !ok {
		return false
	}
	if spare != nil {
		r.b = spare
		return true
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		r.budget.give(nil, size)
		return false
	}
	r.b = b
	return true
}

func (r *ring) grow() bool {
	next := ring{end: r.start, start: r.start, base: r.start, budget: r.budget, limit: r.limit}
	if !next.alloc(min(len(r.b)*8, r.limit)) {
		return false
	}
	for off := r.start; off < r.end; {
		p := r.at(off)
		copy(next.b[int(off-next.base):], p)
		off += int64(len(p))
	}
	start, end := r.start, r.end
	r.free()
	r.b, r.base, r.start, r.end = next.b, next.base, start, end
	return true
}
