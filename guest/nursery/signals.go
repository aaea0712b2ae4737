package nursery

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// childFD is the eventfd that the handler of SIGCHLD counts into.
//
//lint:ignore U1000 the handler is assembler
var childFD int64

func handlers() (handler, restorer uintptr)

// sigaction as the kernel has it.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// TakeSignals gives every signal its default action, in place of the handlers that Go's runtime has installed:
// the kernel discards whatever a process inside its namespace sends to a PID 1 that has the default action,
// while a handler would run (Go's takes a SIGSEGV sent with sigqueue for a real one and ends the process). A
// real fault still ends it. SIGCHLD counts into the returned eventfd. Call once, in PID 1.
func TakeSignals() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	childFD = int64(fd)
	for sig := 1; sig <= 64; sig++ {
		var sa sigaction
		switch unix.Signal(sig) {
		case unix.SIGKILL, unix.SIGSTOP:
			continue
		case unix.SIGCHLD:
			sa.handler, sa.restorer = handlers()
			sa.flags = 0x1 /* SA_NOCLDSTOP */ | 0x04000000 /* SA_RESTORER */ | 0x08000000 /* SA_ONSTACK */ | 0x10000000 /* SA_RESTART */
			sa.mask = ^uint64(0)
		}
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&sa)), 0, 8, 0, 0); e != 0 {
			return -1, e
		}
	}
	return fd, nil
}

// DefaultSignals appends the steps by which a child forgets dsec-init's handler and mask.
func (s *Script) DefaultSignals() {
	s.Do(0, unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), s.Bytes(make([]byte, 32)), 0, 8)
	s.Do(0, unix.SYS_RT_SIGPROCMASK, 2, s.Bytes(make([]byte, 8)), 0, 8)
}
