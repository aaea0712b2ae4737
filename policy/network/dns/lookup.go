package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
)

// lookups asks upstreams, once for all who ask the same at the same time.
type lookups struct {
	cfg      Config
	cache    *cache
	upstream *upstream

	wg sync.WaitGroup
	mu sync.Mutex
	m  map[cacheKey]*flight
}

// flight is a question that is being asked.
type flight struct {
	done chan struct{}
	r    *result // set when done
}

// failureTTL is how long a failure is remembered, so that impatient clients do not multiply it.
const failureTTL = time.Second

// get returns what upstreams say, or why they do not.
func (l *lookups) get(ctx context.Context, name string, qtype uint16) (*result, error) {
	k := cacheKey{name, qtype}
	if r := l.cache.get(k, l.cfg.Now()); r != nil {
		return r, r.err
	}
	f, first := l.join(k)
	if first {
		l.fly(f, k)
	}
	select {
	case <-f.done:
		return f.r, f.r.err
	case <-ctx.Done():
		return nil, errors.New("no answer from upstream in time")
	}
}

// join finds the flight of a question, or begins it: then the caller flies it.
func (l *lookups) join(k cacheKey) (f *flight, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.m[k]; f != nil {
		return f, false
	}
	if l.m == nil {
		l.m = map[cacheKey]*flight{}
	}
	f = &flight{done: make(chan struct{})}
	l.m[k] = f
	return f, true
}

// fly asks, for all who joined, in the goroutine of who asked first: a hand-over costs as much as a packet. It ends by its
// own time, whatever becomes of that one.
func (l *lookups) fly(f *flight, k cacheKey) {
	l.wg.Add(1)
	defer l.wg.Done()
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Timeout)
	defer cancel()
	f.r = l.fetch(ctx, k)
	l.cache.put(k, f.r)
	l.mu.Lock()
	delete(l.m, k)
	l.mu.Unlock()
	close(f.done)
}

func (l *lookups) wait() { l.wg.Wait() }

func (l *lookups) fetch(ctx context.Context, k cacheKey) *result {
	m, err := l.upstream.ask(ctx, k.name, k.qtype)
	var r *result
	if err == nil {
		r, err = clean(m, k.name, k.qtype)
	}
	now := l.cfg.Now()
	if err != nil {
		l.cfg.Log.Warn("resolve upstream", "name", k.name, "type", typeName(k.qtype), "error", err)
		return &result{err: fmt.Errorf("resolve %s: %w", k.name, err), expires: now.Add(failureTTL)}
	}
	r.expires = now.Add(min(max(r.ttl(m), l.cfg.MinTTL), l.cfg.MaxTTL))
	return r
}

// Bounds of an answer from upstream.
const (
	maxLinks   = 10
	maxRecords = 1024
	negative   = 30 * time.Second // of a negative answer without its own time
)

// ttl is the least of the records that were used, or of the negative answer.
func (r *result) ttl(m *miekg.Msg) time.Duration {
	least := time.Duration(-1)
	for _, rr := range m.Answer {
		d := time.Duration(rr.Header().Ttl) * time.Second
		if least < 0 || d < least {
			least = d
		}
	}
	if len(r.addrs)+len(r.https) > 0 && least >= 0 {
		return least
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*miekg.SOA); ok {
			return min(time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second, negative)
		}
	}
	return negative
}

// clean takes from an answer what belongs to the question: the aliases from its name on, in any order, and the records
// of the asked type at their end. It leaves the message with those records alone.
func clean(m *miekg.Msg, name string, qtype uint16) (*result, error) {
	r := &result{rcode: m.Rcode}
	if m.Rcode != miekg.RcodeSuccess && m.Rcode != miekg.RcodeNameError {
		return nil, fmt.Errorf("upstream says %s", miekg.RcodeToString[m.Rcode])
	}
	if len(m.Answer) > maxRecords {
		return nil, fmt.Errorf("upstream sends %d records", len(m.Answer))
	}
	alias := map[string]*miekg.CNAME{}
	for _, rr := range m.Answer {
		if c, ok := rr.(*miekg.CNAME); ok && c.Hdr.Class == miekg.ClassINET {
			if _, ok := alias[fold(c.Hdr.Name)]; !ok {
				alias[fold(c.Hdr.Name)] = c
			}
		}
	}
	at, used := name, []miekg.RR(nil)
	for {
		c := alias[at]
		if c == nil {
			break
		}
		at = fold(c.Target)
		if len(r.links) == maxLinks || at == name || slices.Contains(r.links, at) {
			return nil, errors.New("its aliases go in a circle, or do not end")
		}
		r.links = append(r.links, at)
		used = append(used, c)
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		if fold(h.Name) != at || h.Class != miekg.ClassINET || h.Rrtype != qtype {
			continue
		}
		switch rr := rr.(type) {
		case *miekg.A:
			r.add(rr.A.To4())
		case *miekg.AAAA:
			r.add(rr.AAAA.To16())
		case *miekg.HTTPS:
			if https := cleanHTTPS(rr, name, at); https != nil {
				r.https = append(r.https, https)
			}
		}
		used = append(used, rr)
	}
	m.Answer = used
	return r, nil
}

func (r *result) add(ip []byte) {
	if a, ok := netip.AddrFromSlice(ip); ok && !slices.Contains(r.addrs, a) {
		r.addrs = append(r.addrs, a)
	}
}

func fold(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// cleanHTTPS leaves of a record what does not lead past the policy: no keys for encrypted client hellos (they hide the
// name), no HTTP/3 (UDP 443 is closed), no hints (addresses are answered, and opened, as A and AAAA), no other port or
// target. nil if nothing remains.
func cleanHTTPS(rr *miekg.HTTPS, name, owner string) *miekg.HTTPS {
	target := fold(rr.Target)
	if rr.Priority == 0 || target != "" && target != name && target != owner {
		return nil
	}
	out := &miekg.HTTPS{SVCB: miekg.SVCB{Hdr: rr.Hdr, Priority: rr.Priority, Target: "."}}
	for _, v := range rr.Value {
		alpn, ok := v.(*miekg.SVCBAlpn)
		if !ok {
			if _, noDefault := v.(*miekg.SVCBNoDefaultAlpn); noDefault || v.Key() == miekg.SVCB_PORT || v.Key() == miekg.SVCB_MANDATORY {
				return nil
			}
			continue
		}
		var keep []string
		for _, p := range alpn.Alpn {
			if p == "h2" || p == "http/1.1" {
				keep = append(keep, p)
			}
		}
		if len(keep) == 0 {
			return nil
		}
		out.Value = append(out.Value, &miekg.SVCBAlpn{Alpn: keep})
	}
	if len(out.Value) == 0 {
		return nil
	}
	return out
}
