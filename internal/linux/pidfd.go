package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"

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
	return unix.PidfdSendSignal(int(p.Fd()), unix.Signal(sig), nil, 0)
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
