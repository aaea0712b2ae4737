package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenPID returns a descriptor of a process, stable against reuse of its number.
func OpenPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd:"+strconv.Itoa(pid)), nil
}

// SignalPID sends a signal through a pidfd.
func SignalPID(p *os.File, sig int) error {
	return whileOpen(p, func(fd int) error { return unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0) })
}

// whileOpen gives f the number of a file that others may close meanwhile: it is no other file's as long as f runs. Error:
// os.ErrClosed.
func whileOpen(p *os.File, f func(fd int) error) error {
	c, err := p.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := c.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// StartTime is a process's start in clock ticks since boot: with the pid it names a process for ever (within
// one boot).
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	s := string(b)
	i := strings.LastIndexByte(s, ')') // the name may hold anything
	f := strings.Fields(s[i+1:])
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("stat of process %d: cannot parse", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// BootID is the kernel's random id of this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// ErrExitUnknown is returned by ExitStatus where the kernel does not tell.
var ErrExitUnknown = errors.New("the process's exit status is not known")

// ExitStatus tells how a process ended that somebody has waited for, whoever that was (Linux 6.15). The pidfd must have been
// opened while it ran. Error: ErrExitUnknown.
func ExitStatus(p *os.File) (syscall.WaitStatus, error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := whileOpen(p, func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) }); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrExitUnknown, err)
	}
	if info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, ErrExitUnknown
	}
	return syscall.WaitStatus(info.Exit_code), nil
}
