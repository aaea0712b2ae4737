package linux

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// NewFUSE makes a detached read-only mount of a FUSE file system, and the device through which it is served. Root alone finds
// it; whom root hands an open file may use that, as a QEMU without privileges does. The kernel's first request, INIT, waits on
// the device.
func NewFUSE(name string) (device, mount *os.File, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	mount, err = NewMount("fuse", ReadOnly|NoDev|NoSuid|NoExec|NoAtime,
		Option{Key: "source", Value: name},
		Option{Key: "fd", Value: strconv.Itoa(fd)},
		Option{Key: "rootmode", Value: "40000"},
		Option{Key: "user_id", Value: "0"},
		Option{Key: "group_id", Value: "0"},
		Option{Key: "allow_other", Flag: true},
	)
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	// Not before: a device that is not mounted yet looks broken to the runtime's poller.
	return os.NewFile(uintptr(fd), "/dev/fuse"), mount, nil
}

// Writev writes all pieces in one call, as FUSE devices want their answers.
func Writev(f *os.File, pieces [][]byte) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = c.Write(func(fd uintptr) bool {
		for {
			if _, werr = unix.Writev(int(fd), pieces); werr != unix.EINTR {
				return true
			}
		}
	})
	if err != nil {
		return err
	}
	return werr
}

// DupFile returns another descriptor of the same open file; one that does not block stays so.
func DupFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor of %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Device returns the numbers of the file system's device on which f lies. Nobody is asked for it: where a FUSE
// server should answer, it need not live.
func Device(f *os.File) (major, minor uint32, err error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	return st.Dev_major, st.Dev_minor, nil
}

// SetReadahead sets how far the kernel reads ahead on the file system of f, bytes.
func SetReadahead(f *os.File, n int) error {
	major, minor, err := Device(f)
	if err != nil {
		return err
	}
	return WritePlain(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", major, minor), strconv.Itoa(n>>10))
}

// ForgetPages makes the kernel drop what it has of a file in memory and does not have to keep.
func ForgetPages(path string) error {
	// Package os would ask a FUSE server whether the file can be polled, from within the runtime: if the server is this
	// process that is a deadlock.
	fd, err := openPlain(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		return &os.PathError{Op: "fadvise", Path: path, Err: err}
	}
	return nil
}
