package container

import (
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

const (
	remainsAfter = 50 * time.Millisecond // how long the rest of an ended sandbox may wait
	maxRemains   = 256                   // more than that are not put off
	remainsRetry = time.Second
	remainsTries = 10
)

// remains is what ended sandboxes leave: empty control groups, a writable layer, a record. Nothing runs in them, so
// their removal can wait for a moment in which no creation is held up by it. The record goes last: what a crash leaves
// is swept by the next start.
type remains struct {
	d *Driver

	mu      sync.Mutex
	list    []remain
	running bool
	closed  bool
	wg      sync.WaitGroup
}

type remain struct {
	id    sandbox.ID
	slot  int
	tries int
}

// leave takes charge of a sandbox of which no process is left. False: the caller removes it itself.
func (r *remains) leave(id sandbox.ID, slot int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.list) >= maxRemains {
		return false
	}
	r.list = append(r.list, remain{id: id, slot: slot})
	r.wake(remainsAfter)
	return true
}

// wake starts the removal after a while. mu is held.
func (r *remains) wake(after time.Duration) {
	if r.running || r.closed || len(r.list) == 0 {
		return
	}
	r.running = true
	r.wg.Add(1)
	time.AfterFunc(after, func() {
		defer r.wg.Done()
		r.remove()
	})
}

func (r *remains) remove() {
	r.mu.Lock()
	list := r.list
	r.list = nil
	r.mu.Unlock()
	var again []remain
	for _, x := range list {
		start := time.Now()
		err := r.d.removeRest(x.id)
		if err == nil {
			r.d.released(x.slot)
			r.d.observe("remove", time.Since(start))
			continue
		}
		if x.tries++; x.tries >= remainsTries {
			r.d.log.Error("parts of an ended sandbox are left for the next sweep", "id", x.id, "err", err)
			continue // its slot stays taken
		}
		again = append(again, x)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
	after := remainsAfter
	if len(again) > 0 {
		after = remainsRetry
	}
	r.list = append(r.list, again...)
	r.wake(after)
}

// close removes what is left, and lets nothing new in.
func (r *remains) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
	r.remove()
}
