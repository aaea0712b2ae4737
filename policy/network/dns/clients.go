package dns

import (
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// clients keeps what is counted about each sandbox.
type clients struct {
	cfg Config
	mu  sync.Mutex
	m   map[string]*client
}

// maxClients bounds them; beyond, those that were silent longest are forgotten, a quarter at a time.
const maxClients = 1 << 15

func newClients(cfg Config) *clients { return &clients{cfg: cfg, m: map[string]*client{}} }

func (c *clients) get(key string) *client {
	now := c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.m[key]
	if s == nil {
		if len(c.m) >= maxClients {
			c.evict(now)
		}
		s = &client{
			queries: rate.NewLimiter(rate.Limit(c.cfg.Rate), int(3*c.cfg.Rate)+1),
			wild:    rate.NewLimiter(rate.Limit(c.cfg.WildBytes), c.cfg.WildBurst),
			events:  rate.NewLimiter(5, 50),
			limit:   c.cfg.InFlight,
			known:   map[string]bool{},
		}
		c.m[key] = s
	}
	s.seen = now
	return s
}

func (c *clients) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, key)
}

// evict forgets what was not seen for a while; with none such, a quarter of all.
func (c *clients) evict(now time.Time) {
	for k, s := range c.m {
		if now.Sub(s.seen) > 10*time.Minute {
			delete(c.m, k)
		}
	}
	for k := range c.m {
		if len(c.m) < maxClients*3/4 {
			return
		}
		delete(c.m, k)
	}
}

// client is what is counted about one sandbox.
type client struct {
	queries, wild, events *rate.Limiter
	seen                  time.Time // guarded by clients.mu
	limit                 int

	mu         sync.Mutex
	inFlight   int
	suppressed int
	known      map[string]bool // names under wildcards that were paid for
}

func (c *client) allow(now time.Time) bool { return c.queries.AllowN(now, 1) }

func (c *client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight >= c.limit {
		return false
	}
	c.inFlight++
	return true
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
}

// report says whether an event may be reported, and how many were not since the last that was.
func (c *client) report(now time.Time) (suppressed int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.events.AllowN(now, 1) {
		c.suppressed++
		return 0, false
	}
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}

// maxKnown is how many names a sandbox may ask for again without paying.
const maxKnown = 1024

// spend pays for a name of which the sandbox chose a part; a name that it asked for before is free.
func (c *client) spend(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[name] {
		return true
	}
	if !c.wild.AllowN(now, len(name)) {
		return false
	}
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[name] = true
	return true
}

// Bounds of names under wildcards. Real hosts stay far below them; encoded data does not.
const (
	maxWildName    = 128
	maxWildLabels  = 10
	longLabel      = 32  // from this length on, a label's randomness counts
	maxLabelRandom = 4.0 // bits per byte
)

// suspicious says why a name looks like it carries data, or nothing.
func suspicious(name string) string {
	if len(name) > maxWildName {
		return "the name is longer than 128 bytes, under a wildcard"
	}
	labels := strings.Split(name, ".")
	if len(labels) > maxWildLabels {
		return "the name has more than 10 parts, under a wildcard"
	}
	for _, l := range labels {
		if len(l) >= longLabel && entropy(l) >= maxLabelRandom {
			return "a part of the name looks like encoded data, under a wildcard"
		}
	}
	return ""
}

// entropy is Shannon's, in bits per byte.
func entropy(s string) float64 {
	var counts [256]int
	for i := range len(s) {
		counts[s[i]]++
	}
	h := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(s))
			h -= p * math.Log2(p)
		}
	}
	return h
}
