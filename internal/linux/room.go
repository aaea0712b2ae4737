package linux

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ProbeRoom tells whether a file of the given size would not fit where dir lies: it reserves it, without a name, and
// lets it go.
func ProbeRoom(dir *os.File, size int64) (full bool, err error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, size)
		unix.Close(fd)
	}
	if errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) {
		return true, nil
	}
	return false, err
}
