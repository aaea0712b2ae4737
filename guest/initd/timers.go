package initd

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// timers are few, so a list that is searched will do. They share one timerfd.
type timers struct {
	fd    int
	armed int64 // nanoseconds of the monotonic clock for which fd is set, 0 = not set
	list  []*timer
}

type timer struct {
	when  int64 // nanoseconds of the monotonic clock
	index int   // in timers.list + 1; 0 = not set
	f     func()
}

// now is the monotonic clock, as the runtime reads it: without a system call.
func now() int64 { return monotonic0 + int64(time.Since(time0)) }

var time0, monotonic0 = clocks()

func clocks() (time.Time, int64) {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Now(), ts.Nano()
}

func newTimers(p *poller) (*timers, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	t := &timers{fd: fd}
	return t, p.add(fd, unix.EPOLLIN, t)
}

// set makes tm call f after d, in place of what it was set to.
func (t *timers) set(tm *timer, d time.Duration, f func()) {
	tm.when, tm.f = now()+max(int64(d), 1), f
	if tm.index == 0 {
		t.list = append(t.list, tm)
		tm.index = len(t.list)
	}
	if t.armed == 0 || tm.when < t.armed {
		t.arm(tm.when)
	}
}

func (t *timers) stop(tm *timer) {
	if tm.index == 0 {
		return
	}
	last := t.list[len(t.list)-1]
	t.list[tm.index-1], last.index = last, tm.index
	t.list[len(t.list)-1] = nil
	t.list = t.list[:len(t.list)-1]
	tm.index, tm.f = 0, nil
}

func (t *timers) arm(when int64) {
	t.armed = when
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(when)}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(t.fd), unix.TFD_TIMER_ABSTIME, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}

// ready runs what is due.
func (t *timers) ready(uint32) {
	var b [8]byte
	_, _ = rawRead(t.fd, b[:])
	t.armed = 0
	at := now()
	var due []*timer
	for _, tm := range t.list {
		if tm.when <= at {
			due = append(due, tm)
		}
	}
	for _, tm := range due {
		if f := tm.f; f != nil && tm.when <= at { // not stopped or moved by one before it
			t.stop(tm)
			f()
		}
	}
	next := int64(0)
	for _, tm := range t.list {
		if next == 0 || tm.when < next {
			next = tm.when
		}
	}
	if next != 0 {
		t.arm(next)
	}
}
