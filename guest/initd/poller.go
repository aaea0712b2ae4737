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
// waiting loop holds no processor that the workers need, and an event costs one system call more.
//
// Events come in clusters: a command is asked for, is forked, ends. After one the poller lingers in the kernel with
// the processor in its hands, and goes to Go's poller when nothing came.
type poller struct {
	fd     int
	file   *os.File // keeps the registration
	raw    syscall.RawConn
	slots  []slot // by descriptor
	events [64]unix.EpollEvent
	n      int
	wait   func(uintptr) bool
	alone  func() bool // no other goroutine has work
}

// lingerMillis is how long another event is waited for before the processor is given back.
const lingerMillis = 5

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
		n, err := rawEpollWait(p.fd, p.events[:], 0)
		p.n = n
		return err != unix.EINTR && n != 0
	}
	return p, nil
}

// linger is wait for a moment; true when there are events.
func (p *poller) linger() bool {
	if p.n <= 0 || p.alone == nil || !p.alone() {
		return false
	}
	n, err := rawEpollWait(p.fd, p.events[:], lingerMillis)
	p.n = n
	return err == nil && n > 0 || err == unix.EINTR && p.wait(0)
}

// poll waits for events and tells their watchers.
func (p *poller) poll() error {
	if !p.linger() && !p.wait(0) {
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
	if err := rawEpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return err
	}
	s.w = w
	return nil
}

func (p *poller) mod(fd int, events uint32) {
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.slots[fd].gen}
	_ = rawEpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &e)
}

// del forgets a descriptor; it must still be open.
func (p *poller) del(fd int) {
	if fd < len(p.slots) && p.slots[fd].w != nil {
		p.slots[fd].w = nil
		_ = rawEpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}
