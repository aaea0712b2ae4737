package initd

import (
	"runtime"
	"time"
)

// Workers are goroutines on threads of their own, because file operations block and take on the user's
// identity, which belongs to a thread. They are made on demand and end after a moment without work.
const (
	maxWorkers  = 24
	maxJobs     = 256 // waiting
	workerIdles = 2 * time.Second
)

type workers struct {
	i     *Init
	count int // loop only
	idle  int // loop only: waiting for a job; may lag behind
	jobs  chan func()
}

// do runs f on a worker; false means that too many are waiting. Loop only.
func (w *workers) do(f func()) bool {
	if w.jobs == nil {
		w.jobs = make(chan func(), maxJobs)
	}
	if len(w.jobs) == maxJobs {
		return false
	}
	w.jobs <- f
	w.staff()
	return true
}

// idling tells whether no worker has a job. Loop only.
func (w *workers) idling() bool { return w.idle >= w.count && len(w.jobs) == 0 }

// staff starts a worker when more jobs wait than workers.
func (w *workers) staff() {
	if w.count < maxWorkers && w.idle < len(w.jobs) {
		w.count++
		go w.work()
	}
}

func (w *workers) work() {
	// Never unlocked: the thread ends with the goroutine, whatever identity it has.
	runtime.LockOSThread()
	t := time.NewTimer(workerIdles)
	for {
		select {
		case f := <-w.jobs:
			f()
			continue
		default:
		}
		w.i.call(func() { w.idle++ })
		t.Reset(workerIdles)
		var f func()
		select {
		case f = <-w.jobs:
		case <-t.C:
		}
		done := f == nil
		w.i.call(func() {
			w.idle--
			if done {
				w.count--
			}
			w.staff() // one may have come since, counting on this worker
		})
		if done {
			return
		}
		f()
	}
}
