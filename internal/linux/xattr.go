package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Xattr is an extended attribute: full name and value.
type Xattr struct {
	Name  string
	Value string
}

// Xattrs returns the extended attributes of an open file, in the kernel's order; the descriptor may be one that
// only names the file (O_PATH). A file system without attributes has none.
func Xattrs(f *os.File) ([]Xattr, error) {
	// The attribute calls refuse O_PATH descriptors; the magic link leads to the same object.
	path := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	return readXattrs(f.Name(),
		func(b []byte) (int, error) { return unix.Listxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Getxattr(path, name, b) })
}

// Lxattrs returns the extended attributes of the object that path names, symbolic links not followed.
func Lxattrs(path string) ([]Xattr, error) {
	return readXattrs(path,
		func(b []byte) (int, error) { return unix.Llistxattr(path, b) },
		func(name string, b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
}

func readXattrs(what string, list func([]byte) (int, error), get func(string, []byte) (int, error)) ([]Xattr, error) {
	names, err := grow(list)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || len(names) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: what, Err: err}
	}
	var out []Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		value, err := grow(func(b []byte) (int, error) { return get(name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, &os.PathError{Op: "getxattr " + name, Path: what, Err: err}
		}
		out = append(out, Xattr{name, string(value)})
	}
	return out, nil
}

// grow calls a function that fills a buffer, with larger buffers as long as it says ERANGE.
func grow(fill func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 256)
	for range 16 {
		n, err := fill(buf)
		if err == nil {
			return buf[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) {
			return nil, err
		}
		buf = make([]byte, 4*len(buf))
	}
	return nil, fmt.Errorf("attribute keeps growing: %w", unix.ERANGE)
}

// SetLxattr sets an extended attribute of the object that path names, symbolic links not followed.
func SetLxattr(path, name, value string) error {
	if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
		return &os.PathError{Op: "setxattr " + name, Path: path, Err: err}
	}
	return nil
}
