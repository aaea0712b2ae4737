package linux

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// NewFUSE makes a detached read-only mount of a FUSE file system for root alone, and the device through which it is
// served. The kernel's first request, INIT, waits on the device.
func NewFUSE(name string) (device, mount *os.File, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	device = os.NewFile(uintptr(fd), "/dev/fuse")
	mount, err = NewMount("fuse", ReadOnly|NoDev|NoSuid|NoExec|NoAtime,
		Option{Key: "source", Value: name},
		Option{Key: "fd", Value: strconv.Itoa(fd)},
		Option{Key: "rootmode", Value: "40000"},
		Option{Key: "user_id", Value: "0"},
		Option{Key: "group_id", Value: "0"},
	)
	if err != nil {
		device.Close()
		return nil, nil, err
	}
	return device, mount, nil
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

// SetReadahead sets how far the kernel reads ahead on the file system of f, bytes.
func SetReadahead(f *os.File, n int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return WritePlain(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev)), strconv.Itoa(n>>10))
}
