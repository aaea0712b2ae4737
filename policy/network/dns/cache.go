package dns

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
)

// result is what upstreams said to a question, cleaned. It does not change.
type result struct {
	rcode   int      // success or NXDOMAIN
	links   []string // aliases from the asked name on, normalised
	addrs   []netip.Addr
	https   []*miekg.HTTPS
	expires time.Time
	err     error // upstreams failed; kept for a moment
}

func (r *result) left(now time.Time) time.Duration { return r.expires.Sub(now) }

type cacheKey struct {
	name  string
	qtype uint16
}

// cache keeps results until they expire; the one not asked for longest goes first.
type cache struct {
	max  int
	hits atomic.Uint64

	mu    sync.Mutex
	m     map[cacheKey]*list.Element
	order *list.List // most recent first
}

type cacheEntry struct {
	key cacheKey
	r   *result
}

func newCache(entries int) *cache {
	return &cache{max: entries, m: map[cacheKey]*list.Element{}, order: list.New()}
}

func (c *cache) get(k cacheKey, now time.Time) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[k]
	if e == nil {
		return nil
	}
	r := e.Value.(*cacheEntry).r
	if !now.Before(r.expires) {
		c.order.Remove(e)
		delete(c.m, k)
		return nil
	}
	c.order.MoveToFront(e)
	c.hits.Add(1)
	return r
}

func (c *cache) put(k cacheKey, r *result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.m[k]; e != nil {
		e.Value.(*cacheEntry).r = r
		c.order.MoveToFront(e)
		return
	}
	c.m[k] = c.order.PushFront(&cacheEntry{k, r})
	for c.order.Len() > c.max {
		last := c.order.Back()
		delete(c.m, last.Value.(*cacheEntry).key)
		c.order.Remove(last)
	}
}
