package lazy

import (
	"log/slog"
	"sync"
	"time"
)

// noteEvery is how often faults of one kind of one layer are written down that no reader saw. A damaged store has many: those between
// are counted, and the next line says how many there were.
const noteEvery = time.Second

// notes writes down faults that were repaired.
type notes struct {
	faults *Faults // nil = nowhere
	log    *slog.Logger

	mu    sync.Mutex
	kinds map[noteKind]*noteCount
}

type noteKind struct {
	layer uint64
	what  string
}

type noteCount struct {
	last    time.Time
	pending int
	timer   *time.Timer // writes what is pending; nil = nothing is
}

// maxNoteKinds bounds what is remembered: beyond, those that wait for nothing are forgotten.
const maxNoteKinds = 1024

func newNotes(f *Faults, log *slog.Logger) *notes {
	return &notes{faults: f, log: log, kinds: map[noteKind]*noteCount{}}
}

// note counts a fault, and writes it down: now, or with others within noteEvery.
func (n *notes) note(layer uint64, what string) {
	if n.faults == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	k := noteKind{layer, what}
	c := n.kinds[k]
	if c == nil {
		if len(n.kinds) >= maxNoteKinds {
			for other, c := range n.kinds {
				if c.timer == nil {
					delete(n.kinds, other)
				}
			}
		}
		c = &noteCount{}
		n.kinds[k] = c
	}
	c.pending++
	switch wait := time.Until(c.last.Add(noteEvery)); {
	case c.timer != nil:
	case wait <= 0:
		n.write(k, c)
	default:
		c.timer = time.AfterFunc(wait, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			c.timer = nil
			n.write(k, c)
		})
	}
}

// write is called with n.mu held.
func (n *notes) write(k noteKind, c *noteCount) {
	if c.pending == 0 {
		return
	}
	c.last = time.Now()
	if err := n.faults.RecordRepaired(Fault{When: c.last, Layer: k.layer, What: k.what, Count: c.pending}); err != nil {
		n.log.Error("a store fault is not recorded", "err", err)
	}
	c.pending = 0
}

// close writes what is pending.
func (n *notes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, c := range n.kinds {
		if c.timer != nil {
			c.timer.Stop()
			c.timer = nil
		}
		n.write(k, c)
	}
}
