package stage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func mount(source, target, fs string, flags uintptr, data string) error {
	return unix.Mount(source, target, fs, flags, data)
}

// bind binds from over to with the flags.
func bind(from, to string, flags uintptr) error {
	if err := mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

// loopbackUp sets the interface lo up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap("bring loopback up", err)
	}
	defer unix.Close(fd)
	var req struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:], "lo")
	req.flags = unix.IFF_UP | unix.IFF_RUNNING
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req))); e != 0 {
		return wrap("bring loopback up", e)
	}
	return nil
}

// stageError avoids package fmt, which dsec-init does without.
type stageError struct {
	what string
	err  error
}

func wrap(what string, err error) error { return &stageError{what, err} }
func (e *stageError) Error() string     { return e.what + ": " + e.err.Error() }
func (e *stageError) Unwrap() error     { return e.err }
