package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// shape is what machines of one pool have in common.
type shape struct {
	cpus   int
	memory int64 // bytes, of the machine
}

func (s shape) String() string { return fmt.Sprintf("%d processors, %d MiB", s.cpus, s.memory>>20) }

// maxShapes is how many shapes have machines ready at once; the one that nobody asked for the longest makes room.
const maxShapes = 4

// quietTime is how long after a creation nothing is made: what it is for comes first, and the next of a burst. Where
// creations never stop for so long they are clones, which cost less than to make machines ready.
const quietTime = time.Second

// Pauses after what failed in the background.
const (
	retryFirst = 10 * time.Second
	retryMost  = 10 * time.Minute
)

// templateStrikes is how many clones of a template in a row may fail before it is made again.
const templateStrikes = 2

// stock is what is ready for one shape. The pool's mu guards it.
type stock struct {
	shape    shape
	disk     int64 // bytes: the size of the disk that was asked for last, for those to come
	used     time.Time
	template *template // nil = not made yet
	strikes  int
	ready    []*instance
	retry    time.Time // nothing is made before
	fails    int
}

// pool keeps machines ready, for shapes that creations ask for. What it makes, one machine at a time, waits while
// creations are under way, and a moment longer. A node that makes no machines has none.
type pool struct {
	d    *Driver
	wake chan struct{} // something has changed

	mu      sync.Mutex
	stocks  map[shape]*stock
	busy    int         // creations under way
	ended   time.Time   // when the last one ended
	dead    []*instance // were ready, and ended by themselves
	stop    context.CancelFunc
	stopped chan struct{} // nil = it does not run
	closed  bool
}

func newPool(d *Driver) *pool {
	return &pool{d: d, wake: make(chan struct{}, 1), stocks: map[shape]*stock{}}
}

func (p *pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default: // it looks anyway
	}
}

// begin notes a creation, and returns a machine that is ready for it, or else a template, or neither. end must follow.
func (p *pool) begin(s shape, disk int64) (i *instance, t *template, end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.d.cfg.Warm <= 0 || p.closed {
		return nil, nil, func() {}
	}
	st := p.stocks[s]
	if st == nil {
		st = &stock{shape: s}
		p.stocks[s] = st
	}
	st.used, st.disk = time.Now(), disk
	for len(st.ready) > 0 && i == nil {
		i = st.ready[0]
		st.ready = st.ready[1:]
		select {
		case <-i.done:
			p.dead = append(p.dead, i)
			i = nil
		default:
		}
	}
	p.busy++
	if p.stopped == nil {
		ctx, cancel := context.WithCancel(context.Background())
		p.stop, p.stopped = cancel, make(chan struct{})
		go p.run(ctx)
	}
	return i, st.template, func() {
		p.mu.Lock()
		p.busy--
		st.used = time.Now()
		p.ended = st.used
		p.mu.Unlock()
		p.kick()
	}
}

// cloned tells whether a clone of a template came up: after several that did not it is made again.
func (p *pool) cloned(s shape, t *template, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stocks[s]
	if st == nil || st.template != t {
		return
	}
	if st.strikes++; ok {
		st.strikes = 0
	} else if st.strikes >= templateStrikes {
		p.d.log.Warn("clones of a template do not come up: it is made again", "shape", s.String())
		st.template, st.strikes = nil, 0
		if err := t.remove(); err != nil {
			p.d.log.Error("remove a template", "err", err)
		}
	}
}

// warm counts machines that are ready.
func (p *pool) warm() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.stocks {
		n += len(st.ready)
	}
	return n
}

// run makes what is lacking, and gives back what is not asked for, until ctx ends.
func (p *pool) run(ctx context.Context) {
	defer close(p.stopped)
	for ctx.Err() == nil {
		st, give, wait := p.next(time.Now())
		for _, i := range give {
			p.drop(i)
		}
		if st != nil {
			err := p.provide(ctx, st)
			if ctx.Err() == nil {
				p.settle(st, err)
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next is the shape to provide for, nil for none before wait is over or something changes; and machines to give back.
func (p *pool) next(now time.Time) (best *stock, give []*instance, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = p.d.cfg.WarmIdle
	give, p.dead = p.dead, nil
	for len(p.stocks) > maxShapes {
		var oldest *stock
		for _, st := range p.stocks {
			if oldest == nil || st.used.Before(oldest.used) {
				oldest = st
			}
		}
		give = append(give, oldest.ready...)
		delete(p.stocks, oldest.shape)
	}
	for s, st := range p.stocks {
		left := st.used.Add(p.d.cfg.WarmIdle).Sub(now)
		if left <= 0 && p.busy == 0 {
			give = append(give, st.ready...)
			delete(p.stocks, s)
			continue
		}
		wait = min(wait, max(left, time.Second))
		if len(st.ready) >= p.d.cfg.Warm {
			continue
		}
		if pause := st.retry.Sub(now); pause > 0 {
			wait = min(wait, pause)
			continue
		}
		if best == nil || st.used.After(best.used) {
			best = st
		}
	}
	if quiet := p.ended.Add(quietTime).Sub(now); best != nil && quiet > 0 {
		best, wait = nil, min(wait, quiet)
	}
	if p.busy > 0 || len(give) > 0 {
		best = nil // when they end it looks again
	}
	if len(give) > 0 {
		wait = 0
	}
	return best, give, wait
}

// provide makes a shape's template, or one machine more.
func (p *pool) provide(ctx context.Context, st *stock) error {
	m, err := p.d.hardware(ctx, st.shape)
	if err != nil {
		return err
	}
	if err := enoughMemory(); err != nil {
		return err
	}
	p.mu.Lock()
	t, disk := st.template, st.disk
	p.mu.Unlock()
	if t == nil {
		if t, err = p.d.template(ctx, m); err != nil {
			return err
		}
		p.mu.Lock()
		st.template = t
		p.mu.Unlock()
		return nil
	}
	i, err := p.d.warmMachine(ctx, m, t, disk)
	p.cloned(st.shape, t, err == nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	keep := p.stocks[st.shape] == st && !p.closed
	if keep {
		st.ready = append(st.ready, i)
	}
	p.mu.Unlock()
	if !keep {
		p.drop(i)
	}
	return nil
}

// settle notes how it went.
func (p *pool) settle(st *stock, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		st.fails = 0
		return
	}
	pause := min(retryFirst<<min(st.fails, 10), retryMost)
	st.fails++
	st.retry = time.Now().Add(pause)
	p.d.log.Warn("no machine could be made ready; creations boot meanwhile", "shape", st.shape.String(), "again_in", pause, "err", err)
}

// drop ends a machine that nobody has.
func (p *pool) drop(i *instance) {
	if err := i.Destroy(context.Background()); err != nil {
		p.d.log.Error("end a machine that was ready; the next start will", "id", i.id, "err", err)
	}
}

// close ends what is ready.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	stopped := p.stopped
	if stopped != nil {
		p.stop()
	}
	p.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	p.mu.Lock()
	all := p.dead
	for _, st := range p.stocks {
		all = append(all, st.ready...)
	}
	clear(p.stocks)
	p.mu.Unlock()
	for _, i := range all {
		p.drop(i)
	}
}

// warmMachine makes a machine that is ready to be claimed: a clone that has rehearsed, and stands still.
func (d *Driver) warmMachine(ctx context.Context, m *hardware, t *template, disk int64) (_ *instance, err error) {
	start := time.Now()
	i, err := d.cloneMachine(ctx, sandbox.NewID(d.cfg.Edge), m, t)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(i.bootFailure(err), i.Destroy(context.WithoutCancel(ctx)))
		}
	}()
	ctx, cancel := i.within(ctx)
	defer cancel()
	ctx, stop := i.until(ctx)
	defer stop()
	path := filepath.Join(d.dir(i.id), diskName)
	if err := makeDisk(ctx, path, rehearsalDisk); err != nil {
		return nil, err
	}
	if err := i.rehearse(ctx, m); err != nil {
		return nil, err
	}
	if err := i.run(ctx, "stop"); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	if err := makeDisk(ctx, path, disk); err != nil {
		return nil, err
	}
	i.limits.Disk = disk
	d.observe("warm", start)
	return i, nil
}

// rehearsalDisk is the size of the disk that a machine rehearses with, bytes.
const rehearsalDisk = 16 << 20

// cloneMachine makes a machine of a template; it stands still, as the template did, and has no environment. After an
// error nothing is left.
func (d *Driver) cloneMachine(ctx context.Context, id sandbox.ID, m *hardware, t *template) (_ *instance, err error) {
	h := *m
	h.clone, h.ram, h.slots = true, filepath.Join(t.dir, ramName), warmLayers
	start := time.Now()
	i, err := d.startMachine(ctx, id, &h)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(i.bootFailure(err), i.Destroy(context.WithoutCancel(ctx)))
		}
	}()
	ctx, cancel := i.within(ctx)
	defer cancel()
	ctx, stop := i.until(ctx)
	defer stop()
	if err := i.attachMonitor(ctx); err != nil {
		return nil, err
	}
	if err := i.restore(ctx, t.state); err != nil {
		return nil, err
	}
	d.observe("restore", start)
	return i, i.attachControl(ctx)
}

// spare is the part of the node's memory that must be available for machines that nobody has asked for yet.
const spare = 8

// enoughMemory refuses when the node's memory is better used otherwise.
func enoughMemory() error {
	total, err := linux.TotalMemory()
	if err != nil {
		return err
	}
	free, err := linux.AvailableMemory()
	if err == nil && free < total/spare {
		err = fmt.Errorf("%w: the node has %d MiB of memory left", sandbox.ErrExhausted, free>>20)
	}
	return err
}
