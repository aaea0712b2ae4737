package supervisor

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper collects every child that ends: roles, and orphans that became children.
type reaper struct {
	signals chan os.Signal
	quit    chan struct{}

	mu    sync.Mutex
	waits map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{signals: make(chan os.Signal, 1), quit: make(chan struct{}), waits: map[int]chan syscall.WaitStatus{}}
	signal.Notify(r.signals, syscall.SIGCHLD)
	return r
}

// start starts a process under the lock, so that it cannot be reaped before it is known.
func (r *reaper) start(f func() (*os.Process, error)) (pid int, exit <-chan syscall.WaitStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := f()
	if err != nil {
		return 0, nil, err
	}
	pid = p.Pid
	_ = p.Release() // its end is collected here
	c := make(chan syscall.WaitStatus, 1)
	r.waits[pid] = c
	return pid, c, nil
}

func (r *reaper) run() {
	for {
		select {
		case <-r.quit:
			signal.Stop(r.signals)
			return
		case <-r.signals:
			r.collect()
		}
	}
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if c := r.waits[pid]; c != nil {
			c <- ws
			delete(r.waits, pid)
		}
	}
}

func (r *reaper) close() { close(r.quit) }
