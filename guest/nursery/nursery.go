package nursery

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// state is shared with the interpreter, which knows the offsets.
type state struct {
	word    uint32 // 1 = there is a script to run; also the futex
	pid     int32  // of the child, written by the kernel before the child runs
	ops     uintptr
	end     uintptr
	cloned  int64
	failed  uintptr
	eventFD int64
	one     uint64
}

func spawn(flags, stack uintptr, st *state) int64

// Nursery is the thread. Its methods are for one goroutine.
type Nursery struct {
	st      *state
	tid     int
	eventFD int
	script  *Script // running
	arena   []byte  // for scripts that fit
}

const arenaSize = 32 << 10

// New starts the thread. It never ends.
func New() (*Nursery, error) {
	// One mapping: the state, a stack that is never used but must be valid, and the arena.
	mem, err := unix.Mmap(-1, 0, 8<<10+arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	n := &Nursery{st: (*state)(unsafe.Pointer(&mem[0])), eventFD: fd, arena: mem[8<<10:]}
	n.st.eventFD, n.st.one = int64(fd), 1
	flags := unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM
	r := spawn(uintptr(flags), uintptr(unsafe.Pointer(&mem[0]))+8<<10, n.st)
	if r < 0 {
		return nil, unix.Errno(-r)
	}
	n.tid = int(r)
	return n, nil
}

// TID is the thread's number.
func (n *Nursery) TID() int { return n.tid }

// FD is readable when a script has ended.
func (n *Nursery) FD() int { return n.eventFD }

// Busy tells whether a script has been handed over and its result not been taken.
func (n *Nursery) Busy() bool { return n.script != nil }

// ForkedPID is the child of the running script, 0 before there is one. The child may not have called exec yet.
func (n *Nursery) ForkedPID() int { return int(atomic.LoadInt32(&n.st.pid)) }

// Run hands a script over. The nursery must not be busy; it owns the script until Result returns it.
func (n *Nursery) Run(s *Script) {
	st := n.st
	n.script = s
	s.failed = -1
	st.ops = uintptr(unsafe.Pointer(&s.ops[0]))
	st.end = st.ops + uintptr(len(s.ops))*unsafe.Sizeof(op{})
	st.cloned, st.failed = 0, 0
	atomic.StoreInt32(&st.pid, 0)
	atomic.StoreUint32(&st.word, 1)
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&st.word)), 129 /* FUTEX_WAKE_PRIVATE */, 1, 0, 0, 0)
}

// Result returns the script once it has ended; ok is false while it runs.
func (n *Nursery) Result() (s *Script, ok bool) {
	if n.script == nil || atomic.LoadUint32(&n.st.word) != 0 {
		return nil, false
	}
	var b [8]byte
	unix.RawSyscall(unix.SYS_READ, uintptr(n.eventFD), uintptr(unsafe.Pointer(&b)), 8)
	s, n.script = n.script, nil
	s.pid = int(n.st.cloned)
	if f := n.st.failed; f != 0 {
		s.failed = int((f - n.st.ops) / unsafe.Sizeof(op{}))
	}
	return s, true
}

// RunWait runs a script without a fork and waits for it. For preparations.
func (n *Nursery) RunWait(s *Script) error {
	n.Run(s)
	for {
		p := []unix.PollFd{{Fd: int32(n.eventFD), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return err
		}
		if _, ok := n.Result(); ok {
			break
		}
	}
	_, err := s.Failed()
	return err
}
