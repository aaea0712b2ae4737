package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy/cache"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// maxHot bounds the verified chunks that stay in memory, bytes, of a 64th of the machine's: a chunk is often read in
	// many small pieces, by several programs at once, and to bring it in again means to read and verify the whole.
	minHot, maxHot = 16 << 20, 128 << 20
	// maxRun is the most that one request to the store asks for, bytes.
	maxRun = 2 << 20
	// maxDamaged is how often a chunk is fetched that the store gives in another form.
	maxDamaged = 3
	// The wait before a store is asked again.
	firstRetry, lastRetry = 50 * time.Millisecond, time.Second
)

// Stats of a Server; counters since it was started.
type Stats struct {
	Cache        cache.Stats `json:"cache"`
	Layers       int64       `json:"layers"`       // on the node's disk
	Reads        int64       `json:"reads"`        // of the kernel
	ReadBytes    int64       `json:"readBytes"`    // given to it
	Requests     int64       `json:"requests"`     // to the store, for data
	FetchedBytes int64       `json:"fetchedBytes"` // by them
	Ahead        int64       `json:"aheadChunks"`  // chunks fetched before somebody asked
	Coalesced    int64       `json:"coalesced"`    // chunks that were on their way already
	Retries      int64       `json:"retries"`
	StoreDamaged int64       `json:"storeDamaged"` // chunks that the store gave in another form
	Faults       int64       `json:"faults"`       // reads that ended as EIO
}

// source fetches, verifies and caches chunks.
type source struct {
	store   layer.Store
	cache   *cache.Cache
	log     *slog.Logger
	timeout time.Duration
	faults  *notes
	slots   chan struct{} // one for each request to the store
	ahead   chan struct{} // of them, those that nobody waits for
	work    sync.WaitGroup
	ctx     context.Context // of what is under way
	stop    context.CancelFunc

	reads, readBytes, requests, fetched, aheadChunks, coalesced, retries, storeDamaged, failures atomic.Int64

	mu      sync.Mutex
	flights map[cache.Key]*flight
	hot     map[cache.Key]*buffer
	order   []cache.Key // of hot, a ring of as many as may stay
	next    int
	failed  map[cache.Key]*failed
	bufs    buffers
	runs    sync.Pool // *[]byte of maxRun, for what is fetched together
}

// failed is a chunk that did not come in time. The kernel asks for what it could not read ahead once more: its reader
// has waited already.
type failed struct {
	err   error
	left  int       // reads that fail at once
	until time.Time // from then on the store is asked again
}

// kernelRetries is how often the kernel tries by itself after a failed read. Through the cache of the device's file it
// does so at both levels.
func kernelRetries() int {
	if linux.ErofsReadsDirectly() {
		return 1
	}
	return 2
}

// retriesWithin is for how long the kernel's attempts are taken for such.
const retriesWithin = 500 * time.Millisecond

// flight is one chunk on its way.
type flight struct {
	l    *attached
	n    int // chunk of l
	done chan struct{}
	data *buffer
	err  error

	// Of source.mu.
	waiters int // each gets a reference to data
	ended   bool
}

func newSource(store layer.Store, c *cache.Cache, o Options) *source {
	ctx, stop := context.WithCancel(context.Background())
	hot := int(o.Memory / layer.ChunkSize)
	s := &source{ctx: ctx, stop: stop, store: store, cache: c, log: o.Log, timeout: o.Timeout, faults: newNotes(o.Faults, o.Log),
		slots: make(chan struct{}, o.Requests), ahead: make(chan struct{}, max(1, o.Requests/2)),
		flights: map[cache.Key]*flight{}, hot: map[cache.Key]*buffer{}, failed: map[cache.Key]*failed{}, order: make([]cache.Key, hot)}
	s.bufs.most = hot*layer.ChunkSize/slabSize + spareSlabs
	s.runs.New = func() any { return new(make([]byte, maxRun)) }
	return s
}

// read returns the bytes from off to end of a layer's data, in pieces, which hold until done is called.
func (s *source) read(ctx context.Context, l *attached, off, end int64) (pieces [][]byte, done func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("%w: %w: the store did not answer for %v", sandbox.ErrUnavailable, sandbox.ErrDeadline, s.timeout))
	defer cancel()
	size := l.manifest.Data.ChunkSize
	first, last := int(off/size), int((end-1)/size)
	have, wait := s.begin(l, first, last, false)
	s.readAhead(l, first, last)
	done = func() {
		for _, x := range have {
			if x != nil {
				x.release()
			}
		}
	}
	pieces = make([][]byte, 0, last-first+1)
	for n := first; n <= last; n++ {
		if f := wait[n-first]; f != nil {
			x, err := s.land(ctx, l, f, n)
			if err != nil {
				for _, f := range wait[n-first+1:] {
					s.leave(f)
				}
				done()
				return nil, nil, fmt.Errorf("layer %s: chunk %d: %w", l.digest, n, err)
			}
			have[n-first] = x
		}
		b, begin := have[n-first].b, int64(n)*size
		pieces = append(pieces, b[max(0, off-begin):min(int64(len(b)), end-begin)])
	}
	return pieces, done, nil
}

// land waits for a chunk, of which the caller gets a reference. One that was fetched for another layer, and in vain, is
// fetched for this one.
func (s *source) land(ctx context.Context, l *attached, f *flight, n int) (*buffer, error) {
	for {
		select {
		case <-f.done:
		case <-ctx.Done():
			s.leave(f)
			return nil, context.Cause(ctx)
		}
		if f.err == nil {
			return f.data, nil
		}
		if f.l == l {
			return nil, f.err
		}
		have, wait := s.begin(l, n, n, false)
		if have[0] != nil {
			return have[0], nil
		}
		f = wait[0]
	}
}

// leave gives up waiting for a chunk.
func (s *source) leave(f *flight) {
	if f == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !f.ended:
		f.waiters--
	case f.data != nil:
		f.data.release()
	}
}

// begin finds chunks first to last in memory, or sees to it that they come. The caller releases each that it has, and
// lands or leaves each that it waits for; one that asks ahead gets neither.
func (s *source) begin(l *attached, first, last int, ahead bool) (have []*buffer, wait []*flight) {
	have, wait = make([]*buffer, last-first+1), make([]*flight, last-first+1)
	perRun := max(1, int(maxRun/l.manifest.Data.ChunkSize))
	var run []*flight
	flush := func() {
		if len(run) > 0 {
			r := run
			run = nil
			s.work.Go(func() { s.fetch(r, ahead) })
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer flush()
	for n := first; n <= last; n++ {
		key := l.keys[n]
		if x := s.hot[key]; x != nil {
			if !ahead {
				x.hold(1)
				have[n-first] = x
			}
			flush()
			continue
		}
		if f := s.flights[key]; f != nil {
			if !ahead {
				f.waiters++
				wait[n-first] = f
			}
			s.coalesced.Add(1)
			flush()
			continue
		}
		f := &flight{l: l, n: n, done: make(chan struct{})}
		if !ahead {
			f.waiters++
			wait[n-first] = f
		}
		if e := s.failed[key]; e != nil && !ahead {
			if e.left--; e.left < 0 || time.Now().After(e.until) {
				delete(s.failed, key)
			} else {
				f.err, f.ended = e.err, true
				close(f.done)
				flush()
				continue
			}
		}
		s.flights[key] = f
		if s.cache.Has(key) {
			flush()
			s.work.Go(func() { s.fromCache(f) })
			continue
		}
		if ahead {
			s.aheadChunks.Add(1)
		}
		if run = append(run, f); len(run) == perRun {
			flush()
		}
	}
	return have, wait
}

// end gives a flight its result; the caller keeps its own reference.
func (s *source) end(f *flight, x *buffer, err error) {
	key := f.l.keys[f.n]
	var cold *buffer
	s.mu.Lock()
	delete(s.flights, key)
	if err == nil {
		clear(s.failed) // the store answers
		x.hold(f.waiters)
	} else if errors.Is(err, sandbox.ErrDeadline) {
		s.failed[key] = &failed{err: err, left: kernelRetries(), until: time.Now().Add(retriesWithin)}
	}
	if err == nil && s.hot[key] == nil {
		cold = s.hot[s.order[s.next]]
		delete(s.hot, s.order[s.next])
		s.order[s.next] = key
		x.hold(1)
		s.hot[key] = x
		s.next = (s.next + 1) % len(s.order)
	}
	f.data, f.err, f.ended = x, err, true
	s.mu.Unlock()
	close(f.done)
	if cold != nil {
		cold.release()
	}
}

// fromCache reads a chunk from the node's disk, or fetches it if that is no good.
func (s *source) fromCache(f *flight) {
	x := s.bufs.get(f.l.chunkLen(f.n))
	good, damaged := s.cache.Read(f.l.keys[f.n], x.b)
	if good {
		s.end(f, x, nil)
	}
	x.release()
	if damaged {
		s.faults.note(f.l.id, FaultCacheDamaged)
	}
	if !good {
		s.fetch([]*flight{f}, false)
	}
}

// fetch brings a run of neighbouring chunks from the store.
func (s *source) fetch(run []*flight, ahead bool) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.timeout, fmt.Errorf("%w: %w: the store did not answer for %v", sandbox.ErrUnavailable, sandbox.ErrDeadline, s.timeout))
	defer cancel()
	var last error
	damaged := 0
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		left, err := s.ask(ctx, run, ahead)
		if len(left) == 0 {
			return
		}
		if err != nil {
			last = err
		}
		if errors.Is(err, layer.ErrDamaged) {
			what := FaultStoreDamaged
			if errors.Is(err, layer.ErrTruncated) {
				what = FaultStoreTruncated
			}
			s.faults.note(left[0].l.id, what)
			if len(left) > 1 { // one may be at fault: each for itself
				for _, f := range left[1:] {
					s.work.Go(func() { s.fetch([]*flight{f}, ahead) })
				}
				left = left[:1]
			}
			if damaged++; damaged == maxDamaged {
				s.end(left[0], nil, err)
				return
			}
		}
		run = left
		s.retries.Add(1)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			err := context.Cause(ctx)
			if last != nil {
				err = fmt.Errorf("%w: %w", err, last)
			}
			for _, f := range run {
				s.end(f, nil, err)
			}
			return
		}
	}
}

// ask makes one request for a run; left are the chunks that did not come or are not good.
func (s *source) ask(ctx context.Context, run []*flight, ahead bool) (left []*flight, err error) {
	f0 := run[0]
	l := f0.l
	size := 0
	for _, f := range run {
		size += l.chunkLen(f.n)
	}
	sem := []chan struct{}{s.slots}
	if ahead {
		sem = []chan struct{}{s.ahead, s.slots}
	}
	for i, c := range sem {
		select {
		case c <- struct{}{}:
		case <-ctx.Done():
			for _, c := range sem[:i] {
				<-c
			}
			return run, context.Cause(ctx)
		}
	}
	buf, free := s.room(size)
	done := make(chan error, 1)
	s.requests.Add(1)
	go func() {
		err := s.store.ReadData(ctx, l.digest, buf, int64(f0.n)*l.manifest.Data.ChunkSize)
		for _, c := range sem {
			<-c
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		// A store may not return in time (a mount that hangs): it then keeps its slots, and the memory, until it does.
		go func() { <-done; free() }()
		return run, context.Cause(ctx)
	}
	defer free()
	if err != nil {
		return run, err
	}
	s.fetched.Add(int64(size))
	var good []*flight
	var chunks []*buffer
	for _, f := range run {
		n := l.chunkLen(f.n)
		b := buf[:n:n]
		buf = buf[n:]
		if cache.Sum(b) != l.keys[f.n] {
			s.storeDamaged.Add(1)
			s.log.Error("the store gave a damaged chunk: it is not served, and fetched again", "layer", l.digest, "chunk", f.n)
			left = append(left, f)
			err = fmt.Errorf("%w: %w: chunk %d from the store does not have its digest", sandbox.ErrUnavailable, layer.ErrDamaged, f.n)
			continue
		}
		x := s.bufs.get(n)
		copy(x.b, b)
		s.end(f, x, nil)
		good, chunks = append(good, f), append(chunks, x)
	}
	for i, f := range good { // nobody waits for this
		s.cache.Put(l.keys[f.n], chunks[i].b)
		chunks[i].release()
	}
	return left, err
}

// room lends memory for one request.
func (s *source) room(size int) (b []byte, free func()) {
	if size > maxRun {
		return make([]byte, size), func() {}
	}
	p := s.runs.Get().(*[]byte)
	return (*p)[:size], func() { s.runs.Put(p) }
}

// close ends what is under way, and waits for it.
func (s *source) close() {
	s.stop()
	s.work.Wait()
	s.faults.close()
	s.mu.Lock()
	for _, x := range s.hot {
		x.release()
	}
	clear(s.hot)
	s.mu.Unlock()
	s.bufs.close()
}

func (s *source) stats() Stats {
	return Stats{Cache: s.cache.Stats(), Reads: s.reads.Load(), ReadBytes: s.readBytes.Load(), Requests: s.requests.Load(),
		FetchedBytes: s.fetched.Load(), Ahead: s.aheadChunks.Load(), Coalesced: s.coalesced.Load(), Retries: s.retries.Load(),
		StoreDamaged: s.storeDamaged.Load(), Faults: s.failures.Load()}
}
