package initd

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher is told when its descriptor is ready. It runs on the loop and must not block.
type watcher interface {
	ready(events uint32)
}

// poller is an epoll set that waits inside Go's own poller: the epoll descriptor is itself pollable. So a
// waiting loop holds no thread that the workers need, and an event costs one system call more.
type poller struct {
	fd     int
	file   *os.File // keeps the registration
	raw    syscall.RawConn
	slots  []slot // by descriptor
	events [64]unix.EpollEvent
	n      int
	wait   func(uintptr) bool
}

type slot struct {
	w   watcher
	gen int32
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	p := &poller{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return nil, err
	}
	p.wait = func(uintptr) bool {
		n, err := unix.EpollWait(p.fd, p.events[:], 0)
		p.n = n
		return err != unix.EINTR && n != 0
	}
	return p, nil
}

// poll waits for events and tells their watchers.
func (p *poller) poll() error {
	if p.n = 0; !p.wait(0) {
		if err := p.raw.Read(p.wait); err != nil {
			return err
		}
	}
	for _, e := range p.events[:max(p.n, 0)] {
		// A watcher earlier in this batch may have closed the descriptor and opened another of its number.
		if s := &p.slots[e.Fd]; s.w != nil && s.gen == e.Pad {
			s.w.ready(e.Events)
		}
	}
	return nil
}

func (p *poller) add(fd int, events uint32, w watcher) error {
	for fd >= len(p.slots) {
		p.slots = append(p.slots, slot{})
	}
	s := &p.slots[fd]
	s.gen++
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: s.gen}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return err
	}
	s.w = w
	return nil
}

func (p *poller) mod(fd int, events uint32) {
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.slots[fd].gen}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &e)
}

// del forgets a descriptor; it must still be open.
func (p *poller) del(fd int) {
	if fd < len(p.slots) && p.slots[fd].w != nil {
		p.slots[fd].w = nil
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}
