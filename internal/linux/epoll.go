package linux

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ExitWatch tells when processes end, through their pidfds, with one thread for all of them.
type ExitWatch struct {
	ep   int
	wake int
	done chan struct{}

	mu  sync.Mutex
	fns map[int32]func()
}

// NewExitWatch starts the watching goroutine; Close ends it.
func NewExitWatch() (*ExitWatch, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
	}
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &ExitWatch{ep: ep, wake: wake, done: make(chan struct{}), fns: map[int32]func(){}}
	go w.loop()
	return w, nil
}

// Add calls fn once, from the watching goroutine, when the process has ended. fn must not block. The pidfd
// must stay open until fn was called or Remove returned.
func (w *ExitWatch) Add(pidfd *os.File, fn func()) error {
	fd := int32(pidfd.Fd())
	w.mu.Lock()
	w.fns[fd] = fn
	w.mu.Unlock()
	if err := unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: fd}); err != nil {
		w.mu.Lock()
		delete(w.fns, fd)
		w.mu.Unlock()
		return fmt.Errorf("watch %s: %w", pidfd.Name(), err)
	}
	return nil
}

// Remove forgets a process.
func (w *ExitWatch) Remove(pidfd *os.File) {
	fd := int32(pidfd.Fd())
	w.mu.Lock()
	delete(w.fns, fd)
	w.mu.Unlock()
	_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, int(fd), nil)
}

// Close ends the goroutine; no fn is called afterwards.
func (w *ExitWatch) Close() {
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.done
	unix.Close(w.ep)
	unix.Close(w.wake)
}

func (w *ExitWatch) loop() {
	defer close(w.done)
	var evs [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.ep, evs[:], -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		for _, e := range evs[:n] {
			if e.Fd == -1 {
				return
			}
			w.mu.Lock()
			fn := w.fns[e.Fd]
			delete(w.fns, e.Fd)
			w.mu.Unlock()
			_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
			if fn != nil {
				fn()
			}
		}
	}
}
