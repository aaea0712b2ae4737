package dns

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// Book remembers which addresses were answered for which names, for the proxy's check that a connection goes where its
// name leads. It is in memory.
type Book struct {
	now func() time.Time
	mu  sync.Mutex
	m   map[string]map[answered]time.Time
}

type answered struct {
	name string
	addr netip.Addr
}

// maxAnswered bounds what is kept of one sandbox.
const maxAnswered = 8192

// NewBook makes an empty book; now may be nil.
func NewBook(now func() time.Time) *Book {
	if now == nil {
		now = time.Now
	}
	return &Book{now: now, m: map[string]map[answered]time.Time{}}
}

// Opener writes into the book what next has opened.
func (b *Book) Opener(next Opener) Opener { return bookOpener{b, next} }

type bookOpener struct {
	b    *Book
	next Opener
}

func (o bookOpener) Open(ctx context.Context, g Grant) error {
	if err := o.next.Open(ctx, g); err != nil {
		return err
	}
	o.b.write(g)
	return nil
}

func (b *Book) write(g Grant) { b.Add(g.Key, g.Entries()...) }

// Entries is what a grant comes to in a book.
func (g Grant) Entries() []Entry {
	out := make([]Entry, len(g.Addresses))
	for i, a := range g.Addresses {
		out[i] = Entry{g.Name, a.Addr, g.Until}
	}
	return out
}

// Add notes what was answered elsewhere.
func (b *Book) Add(key string, entries ...Entry) {
	if len(entries) == 0 {
		return
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.m[key]
	if of == nil {
		of = map[answered]time.Time{}
		b.m[key] = of
	}
	if len(of)+len(entries) > maxAnswered {
		for k, until := range of {
			if !now.Before(until) {
				delete(of, k)
			}
		}
		for k := range of { // all are valid: some go early, and are resolved again
			if len(of)+len(entries) <= maxAnswered*3/4 {
				break
			}
			delete(of, k)
		}
	}
	for _, e := range entries {
		k := answered{e.Name, e.Addr}
		if of[k].Before(e.Until) {
			of[k] = e.Until
		}
	}
}

// Answered says whether an address was answered for a name (lower case, no trailing dot), and still is valid.
func (b *Book) Answered(key, name string, addr netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now().Before(b.m[key][answered{name, addr}])
}

// Entry is an address that was answered for a name.
type Entry struct {
	Name  string
	Addr  netip.Addr
	Until time.Time // may have passed
}

// Entries is what the book has of a sandbox, in no order; answers that are not valid any more are kept for a while.
func (b *Book) Entries(key string) []Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Entry, 0, len(b.m[key]))
	for k, until := range b.m[key] {
		out = append(out, Entry{k.name, k.addr, until})
	}
	return out
}

// Forget drops a sandbox that has ended.
func (b *Book) Forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.m, key)
}
