package linux

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Files of the kernel's own file systems (cgroups, proc) are small, many and never block. Package os asks the kernel
// three more things about each one that it opens, and enters it into the runtime's poller; these functions do not.

// OpenPlain opens a file; flags as for open(2), close-on-exec is added. Errors are *fs.PathError, as of package os.
func OpenPlain(path string, flags int) (*os.File, error) {
	fd, err := openPlain(path, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openPlain(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// WritePlain writes value in one call to a file that exists.
func WritePlain(path, value string) error {
	fd, err := openPlain(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Write(fd, []byte(value))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return &fs.PathError{Op: "write", Path: path, Err: err}
		case n < len(value):
			return fmt.Errorf("write %s: %d of %d bytes were taken", path, n, len(value))
		}
		return nil
	}
}

// ReadPlain reads a file of up to 16 KiB.
func ReadPlain(path string) ([]byte, error) {
	fd, err := openPlain(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 512)
	size := 0
	for {
		n, err := unix.Read(fd, buf[size:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return buf[:size], nil
		}
		if size += n; size == len(buf) {
			if size >= 16<<10 {
				return nil, fmt.Errorf("read %s: it is longer than %d bytes", path, size)
			}
			buf = append(buf, make([]byte, 3*len(buf))...)
		}
	}
}
