package linux

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InstallFilter installs a compiled system-call filter on every thread of this process, with no_new_privs.
// Tests use it; sandboxes get theirs from dsec-init.
func InstallFilter(program []byte) error {
	if len(program) == 0 || len(program)%8 != 0 {
		return errors.New("system-call filter is not whole instructions")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fp := unix.SockFprog{Len: uint16(len(program) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fp)))
	if errno != 0 {
		return errno
	}
	return nil
}

// RawSyscall makes a system call for a test of what is refused.
func RawSyscall(nr, a, b, c uintptr) error {
	_, _, errno := unix.Syscall(nr, a, b, c)
	if errno != 0 {
		return errno
	}
	return nil
}
