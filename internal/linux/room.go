package linux

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ProbeRoom tells whether a file of the given size would not fit where dir lies, and whether that is for a quota or
// because the file system is full: it reserves it, without a name, and lets it go.
func ProbeRoom(dir *os.File, size int64) (quota, full bool, err error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, size)
		unix.Close(fd)
	}
	switch {
	case errors.Is(err, unix.EDQUOT):
		return true, false, nil
	case errors.Is(err, unix.ENOSPC):
		return false, true, nil
	}
	return false, false, err
}

// FreeSpace is what users may still write on the file system that path lies on, bytes.
func FreeSpace(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// NoRoom tells whether an error says that a disk or a quota is full.
func NoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
