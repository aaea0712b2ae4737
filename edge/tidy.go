package edge

import (
	"sync"
	"time"
)

const (
	tidyAfter = 4 * time.Millisecond
	maxTidy   = 1024
)

// tidy is work that nobody waits for: the groups of ended commands, the bounds of records. It is put off for a moment,
// so that it does not compete with the answer that is on its way, and done together.
type tidy struct {
	mu      sync.Mutex
	work    []func()
	pending bool // a timer or goroutine will look at work
}

// later does fn soon; at once where too much waits; not at all once the edge is closing, for the next edge looks at
// everything anew.
func (t *tidy) later(e *Edge, fn func()) {
	t.mu.Lock()
	if len(t.work) >= maxTidy {
		t.mu.Unlock()
		fn()
		return
	}
	t.work = append(t.work, fn)
	if !t.pending {
		t.pending = true
		time.AfterFunc(tidyAfter, func() { e.spawn(t.run) })
	}
	t.mu.Unlock()
}

func (t *tidy) run() {
	for {
		t.mu.Lock()
		work := t.work
		t.work = nil
		t.pending = len(work) > 0
		t.mu.Unlock()
		if len(work) == 0 {
			return
		}
		for _, fn := range work {
			fn()
		}
	}
}
