package edge

import (
	"container/heap"
	"sync"
	"time"

	"github.com/opendsec/dsec/edge/lifecycle"
)

// timers wakes sandboxes at their deadlines: one goroutine and one heap for all of them. A deadline that
// moves later costs nothing: the sandbox is asked again when the old one comes.
type timers struct {
	boot func() lifecycle.Now
	fire func(b *box) // asks the sandbox; called without locks

	mu    sync.Mutex
	queue timerQueue
	wake  chan struct{}
}

func newTimers(boot func() lifecycle.Now, fire func(*box)) *timers {
	return &timers{boot: boot, fire: fire, wake: make(chan struct{}, 1)}
}

// alarm is a sandbox's place in the heap; index -1 = not in it.
type alarm struct {
	at    lifecycle.Now
	index int
}

// arm asks for a wake-up at the given time or before.
func (t *timers) arm(b *box, at lifecycle.Now) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case b.alarm.index < 0:
		b.alarm.at = at
		heap.Push(&t.queue, b)
	case at < b.alarm.at:
		b.alarm.at = at
		heap.Fix(&t.queue, b.alarm.index)
	default:
		return
	}
	if b.alarm.index == 0 {
		t.poke()
	}
}

func (t *timers) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run serves until stop is closed.
func (t *timers) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := t.next()
		timer.Reset(wait)
		select {
		case <-stop:
			return
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// next fires what is due and returns how long to wait.
func (t *timers) next() time.Duration {
	for {
		t.mu.Lock()
		if len(t.queue) == 0 {
			t.mu.Unlock()
			return time.Hour
		}
		b, now := t.queue[0], t.boot()
		if wait := b.alarm.at - now; wait > 0 {
			t.mu.Unlock()
			return wait
		}
		heap.Pop(&t.queue)
		t.mu.Unlock()
		t.fire(b)
	}
}

type timerQueue []*box

func (q timerQueue) Len() int           { return len(q) }
func (q timerQueue) Less(i, j int) bool { return q[i].alarm.at < q[j].alarm.at }
func (q timerQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].alarm.index, q[j].alarm.index = i, j
}
func (q *timerQueue) Push(x any) {
	b := x.(*box)
	b.alarm.index = len(*q)
	*q = append(*q, b)
}
func (q *timerQueue) Pop() any {
	old := *q
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	b.alarm.index = -1
	return b
}
