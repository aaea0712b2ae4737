package files

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Stat describes a file, with its attributes where they are wanted.
func Stat(path string, follow, attrs bool) (wire.FileInfo, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := open(path, flags, 0)
	if err != nil {
		return wire.FileInfo{}, fail("stat", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wire.FileInfo{}, fail("stat", path, err)
	}
	f := info(path, &st)
	if attrs && !procfs(fd) {
		f.Attrs = attributes(func(with int) (int, error) { return open(path, flags&unix.O_NOFOLLOW|with, 0) }, st.Mode)
	}
	if kind(&st) == unix.S_IFLNK && !procfs(fd) {
		if f.Target, err = readlink(fd, ""); err != nil {
			return f, fail("read link", path, err)
		}
	}
	return f, nil
}

// Mkdir makes a directory with the mode, 0755 when it is 0. With parents, missing ones are made with 0755 and an
// existing directory is no error.
func Mkdir(path string, parents bool, mode uint32) error {
	if mode == 0 {
		mode = 0o755
	}
	if parents {
		fd, err := mkdirAll(path, mode)
		if err != nil {
			return fail("make directory", path, err)
		}
		unix.Close(fd)
		return nil
	}
	dir, base, err := openParent(path)
	if err != nil {
		return fail("make directory", path, err)
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, base, mode&0o7777); err != nil {
		return fail("make directory", path, err)
	}
	return nil
}

// mkdirAll opens a directory, making what is missing; the last one gets the mode.
func mkdirAll(path string, mode uint32) (fd int, err error) {
	if fd, err = open(path, dirFlags, 0); err != unix.ENOENT {
		return fd, err
	}
	at := unix.AT_FDCWD
	if strings.HasPrefix(path, "/") {
		if at, err = open("/", dirFlags, 0); err != nil {
			return -1, err
		}
	}
	names := strings.Split(path, "/")
	for k, name := range names {
		if name == "" || name == "." {
			continue
		}
		m := uint32(0o755)
		if k == len(names)-1 {
			m = mode
		}
		next, err := openAt(at, name, dirFlags, 0, 0)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(at, name, m&0o7777); err == nil || err == unix.EEXIST {
				next, err = openAt(at, name, dirFlags, 0, 0)
			}
		}
		if at >= 0 {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// Rename moves a file within a file system, over an existing one.
func Rename(from, to string) error {
	fromDir, fromBase, err := openParent(from)
	if err != nil {
		return fail("move", from, err)
	}
	defer unix.Close(fromDir)
	toDir, toBase, err := openParent(to)
	if err != nil {
		return fail("move to", to, err)
	}
	defer unix.Close(toDir)
	if err := unix.Renameat(fromDir, fromBase, toDir, toBase); err != nil {
		return fail("move "+from+" to", to, err)
	}
	return nil
}

// maxDepth bounds the depth of a tree, because each level holds a descriptor.
const maxDepth = 512

var errDeep = &wire.Error{Code: wire.CodeInvalid, Message: "the tree is too deep"}

// Remove removes a file or an empty directory; recursive, a tree. With force, a missing one is no error. stop
// tells that nobody waits any more.
func Remove(path string, recursive, force bool, stop func() bool) error {
	dir, base, err := openParent(path)
	if err == nil {
		err = remove(dir, base, recursive, 0, stop)
		unix.Close(dir)
	}
	if err == nil || force && err == unix.ENOENT {
		return nil
	}
	return fail("remove", path, err)
}

func remove(dir int, name string, recursive bool, depth int, stop func() bool) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	var st unix.Stat_t
	if serr := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); serr != nil || kind(&st) != unix.S_IFDIR {
		return err
	}
	err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if err != unix.ENOTEMPTY && err != unix.EEXIST || !recursive {
		return err
	}
	if depth > maxDepth {
		return errDeep
	}
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Another process may add files meanwhile: a few rounds, then the directory is not empty.
	for range 8 {
		err := each(fd, func(name string) error {
			if stop != nil && stop() {
				return &wire.Error{Code: wire.CodeClosed, Message: "the connection is gone"}
			}
			if err := remove(fd, name, true, depth+1, stop); err != nil && err != unix.ENOENT {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY && err != unix.EEXIST {
			return err
		}
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return err
		}
	}
	return unix.ENOTEMPTY
}

// each calls f with every name in an open directory.
func each(fd int, f func(name string) error) error {
	buf := make([]byte, 8<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
