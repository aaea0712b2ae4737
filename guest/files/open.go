package files

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// openAt opens a path without following magic links; resolve adds restrictions.
func openAt(dir int, path string, flags int, mode uint32, resolve uint64) (int, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NOCTTY
	}
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_NO_MAGICLINKS | resolve,
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(dir, path, &how)
		// EAGAIN: something on the way was renamed meanwhile. Somebody may do that for ever.
		if err != unix.EINTR && err != unix.EAGAIN || try == 64 {
			return fd, err
		}
	}
}

// open opens an absolute path.
func open(path string, flags int, mode uint32) (int, error) {
	return openAt(unix.AT_FDCWD, path, flags, mode, 0)
}

// Check refuses what cannot be a path.
func Check(path string) error {
	if path == "" || len(path) >= wire.MaxPath || strings.IndexByte(path, 0) >= 0 {
		return &wire.Error{Code: wire.CodeInvalid, Message: "a path must not be empty, longer than 4095 bytes, or contain NUL"}
	}
	return nil
}

// split divides a path into its directory and its last name, which may not be "." or "..".
func split(path string) (dir, base string, err error) {
	path = strings.TrimRight(path, "/")
	k := strings.LastIndexByte(path, '/')
	dir, base = path[:k+1], path[k+1:]
	if dir == "" {
		dir = "."
	}
	if base == "" || base == "." || base == ".." {
		return "", "", &wire.Error{Code: wire.CodeInvalid, Message: "the path must end in a name"}
	}
	return dir, base, nil
}

// openParent opens the directory of a path.
func openParent(path string) (fd int, base string, err error) {
	dir, base, err := split(path)
	if err != nil {
		return -1, "", err
	}
	fd, err = open(dir, dirFlags, 0)
	return fd, base, err
}

// procfs tells whether a descriptor lies in a proc file system.
func procfs(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) != nil || st.Type == unix.PROC_SUPER_MAGIC
}

var errProc = &wire.Error{Code: wire.CodeInvalid, Message: "files under /proc are not served; run a command to read them"}

// fail turns an error of the kernel into one of the wire.
func fail(what, path string, err error) error {
	if e, ok := err.(*wire.Error); ok {
		return e
	}
	code := wire.CodeInternal
	text := err.Error()
	switch err {
	case unix.ENOENT:
		code = wire.CodeNotFound
	case unix.EEXIST:
		code = wire.CodeExists
	case unix.EACCES, unix.EPERM, unix.EROFS:
		code = wire.CodePermission
	case unix.ENOTDIR:
		code = wire.CodeNotDirectory
	case unix.EISDIR:
		code = wire.CodeIsDirectory
	case unix.ENOTEMPTY:
		code = wire.CodeNotEmpty
	case unix.ENOSPC, unix.EDQUOT:
		code = wire.CodeNoSpace
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		code = wire.CodeExhausted
	case unix.ELOOP:
		code, text = wire.CodeInvalid, "too many symbolic links, or one of the links in /proc that lead into a process"
	case unix.EXDEV:
		code, text = wire.CodeInvalid, "it lies on another file system or outside the directory"
	case unix.EOPNOTSUPP:
		code, text = wire.CodeInvalid, "its file system does not keep that"
	case unix.E2BIG, unix.ERANGE, unix.EINVAL, unix.ENAMETOOLONG, unix.ENXIO, unix.EBUSY, unix.EMLINK, unix.EFBIG, unix.ETXTBSY:
		code = wire.CodeInvalid
	}
	if path != "" {
		what += " " + path
	}
	return &wire.Error{Code: code, Message: what + ": " + text}
}

func info(path string, st *unix.Stat_t) wire.FileInfo {
	return wire.FileInfo{
		Path: path, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: max(st.Size, 0), MtimeNS: st.Mtim.Nano(),
	}
}

func kind(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// readlink reads the target of a symbolic link opened with O_PATH, or of a name in a directory.
func readlink(dir int, name string) (string, error) {
	b := make([]byte, wire.MaxPath)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}
