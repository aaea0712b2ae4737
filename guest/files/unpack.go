package files

import (
	"bufio"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// maxDirs bounds the directories that get their mode and modification time at the end, when all is in them.
const maxDirs = 16 << 10

// Unpack unpacks a tar beneath path, which is made if it is missing. Names that are absolute or lead out are
// refused; symbolic links are made as they are and followed, on the way to a member, only as long as they stay
// beneath path. All belongs to the user who unpacks. Devices are refused.
func Unpack(path string, r io.Reader) error {
	root, err := mkdirAll(path, 0o755)
	if err != nil {
		return fail("unpack to", path, err)
	}
	defer unix.Close(root)
	if procfs(root) {
		return fail("unpack to", path, errProc)
	}
	u := &unpacker{root: root, r: bufio.NewReaderSize(r, 32<<10), dir: -1}
	defer u.forget()
	for {
		m, err := next(u.r)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name, err := clean(m.name)
		if err == nil {
			err = u.member(name, m)
		}
		if err != nil {
			if err == errTar {
				return err
			}
			return fail("unpack", m.name, err)
		}
	}
	// Innermost first: the mode of an outer one may shut the user out.
	for k := len(u.dirs) - 1; k >= 0; k-- {
		d := &u.dirs[k]
		u.forget()
		dir, base, err := u.parent(d.name)
		if err == nil {
			err = finishDir(dir, base, &d.m)
		}
		if err != nil {
			return fail("unpack", d.name, err)
		}
	}
	// What follows the archive's end is padding.
	_, err = io.Copy(io.Discard, u.r)
	return err
}

type unpacker struct {
	root int
	r    *bufio.Reader
	dir  int // of the last member
	name string
	dirs []laterDir
}

type laterDir struct {
	name string
	m    member
}

// clean returns a member's name without "." and doubled slashes; "" is the root itself.
func clean(name string) (string, error) {
	if strings.IndexByte(name, 0) >= 0 || len(name) >= wire.MaxPath {
		return "", errTar
	}
	if strings.HasPrefix(name, "/") {
		return "", &wire.Error{Code: wire.CodeInvalid, Message: "the archive's name " + name + " is absolute"}
	}
	var parts []string
	for _, p := range strings.Split(name, "/") {
		switch p {
		case "", ".":
		case "..":
			return "", &wire.Error{Code: wire.CodeInvalid, Message: "the archive's name " + name + " leads out of the directory"}
		default:
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, "/"), nil
}

// parent opens the directory of a member beneath the root, making what is missing. It stays open for the next.
func (u *unpacker) parent(name string) (dir int, base string, err error) {
	k := strings.LastIndexByte(name, '/')
	path, base := name[:max(k, 0)], name[k+1:]
	if u.dir >= 0 && path == u.name {
		return u.dir, base, nil
	}
	u.forget()
	if path == "" {
		path = "."
	}
	const beneath = unix.RESOLVE_BENEATH
	fd, err := openAt(u.root, path, dirFlags, 0, beneath)
	if err == unix.ENOENT {
		for k := 0; k <= len(path); k++ {
			if k < len(path) && path[k] != '/' {
				continue
			}
			if err := u.mkdir(path[:k]); err != nil {
				return -1, "", err
			}
		}
		fd, err = openAt(u.root, path, dirFlags, 0, beneath)
	}
	if err != nil {
		return -1, "", err
	}
	u.dir, u.name = fd, name[:max(k, 0)]
	return fd, base, nil
}

// mkdir makes one directory whose own parent exists.
func (u *unpacker) mkdir(path string) error {
	at, base := u.root, path
	if k := strings.LastIndexByte(path, '/'); k >= 0 {
		fd, err := openAt(u.root, path[:k], dirFlags, 0, unix.RESOLVE_BENEATH)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		at, base = fd, path[k+1:]
	}
	if err := unix.Mkdirat(at, base, 0o755); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

func (u *unpacker) forget() {
	if u.dir >= 0 {
		unix.Close(u.dir)
		u.dir = -1
	}
}

func (u *unpacker) member(name string, m *member) error {
	if name == "" {
		if m.kind != typeDir {
			return errTar
		}
		return skip(u.r, m.size+pad(m.size)) // the directory itself stays as it is
	}
	dir, base, err := u.parent(name)
	if err != nil {
		return err
	}
	switch m.kind {
	case typeDir:
		if err := u.directory(dir, base, name, m); err != nil {
			return err
		}
		return skip(u.r, m.size+pad(m.size))
	case typeFile, '7':
		return u.file(dir, base, m)
	case typeSymlink:
		if m.link == "" {
			return errTar
		}
		if err := clear(dir, base); err != nil {
			return err
		}
		if err := unix.Symlinkat(m.link, dir, base); err != nil {
			return err
		}
	case typeLink:
		if err := u.hardLink(dir, base, name, m); err != nil {
			return err
		}
	case typeFIFO:
		if err := clear(dir, base); err != nil {
			return err
		}
		if err := unix.Mknodat(dir, base, unix.S_IFIFO|m.mode&0o777, 0); err != nil {
			return err
		}
	case '3', '4':
		return &wire.Error{Code: wire.CodeInvalid, Message: "a device file cannot be unpacked in a sandbox"}
	default:
		return &wire.Error{Code: wire.CodeInvalid, Message: "a member of this type is not supported"}
	}
	if m.kind != typeLink {
		setTime(dir, base, m)
	}
	return skip(u.r, m.size+pad(m.size))
}

// clear removes what is in a member's place, unless it is a directory.
func clear(dir int, base string) error {
	if err := unix.Unlinkat(dir, base, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

func (u *unpacker) directory(dir int, base, name string, m *member) error {
	err := unix.Mkdirat(dir, base, 0o700)
	if err == unix.EEXIST {
		// A directory, or a link to one that lies beneath, stays.
		fd, oerr := openAt(u.root, name, dirFlags, 0, unix.RESOLVE_BENEATH)
		switch oerr {
		case nil:
			unix.Close(fd)
			err = nil
		case unix.ENOTDIR, unix.EXDEV, unix.ENOENT:
			if err = clear(dir, base); err == nil {
				err = unix.Mkdirat(dir, base, 0o700)
			}
		default:
			err = oerr
		}
	}
	if err != nil {
		return err
	}
	d := member{mode: m.mode, mtime: m.mtime, nsec: m.nsec}
	if len(u.dirs) >= maxDirs {
		return finishDir(dir, base, &d)
	}
	u.dirs = append(u.dirs, laterDir{name, d})
	return nil
}

// finishDir sets mode and time of a directory. A link in its place is left alone.
func finishDir(dir int, base string, m *member) error {
	fd, err := openAt(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH)
	if err == unix.ELOOP || err == unix.ENOTDIR || err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Of a directory that was there before and is another user's only what was unpacked into it changes.
	if err := unix.Fchmod(fd, m.mode&0o7777); err != nil && err != unix.EPERM {
		return err
	}
	setTime(fd, ".", m)
	return nil
}

func (u *unpacker) file(dir int, base string, m *member) error {
	if err := clear(dir, base); err != nil {
		return err
	}
	fd, err := openAt(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, unix.RESOLVE_BENEATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for left := m.size; left > 0; {
		// Straight from the reader's buffer to the file.
		if _, err := u.r.Peek(1); err != nil {
			return truncated(err)
		}
		b, _ := u.r.Peek(int(min(left, int64(u.r.Buffered()))))
		if err := writeAll(fd, b); err != nil {
			return err
		}
		_, _ = u.r.Discard(len(b))
		left -= int64(len(b))
	}
	if err := unix.Fchmod(fd, m.mode&0o7777); err != nil {
		return err
	}
	setTime(dir, base, m)
	return skip(u.r, pad(m.size))
}

// hardLink makes a second name; the first must lie beneath the root as well.
func (u *unpacker) hardLink(dir int, base, name string, m *member) error {
	target, err := clean(m.link)
	if err != nil || target == "" {
		return &wire.Error{Code: wire.CodeInvalid, Message: "a hard link leads out of the directory: " + m.link}
	}
	if target == name {
		return nil
	}
	from, fromBase, fd := u.root, target, -1
	if k := strings.LastIndexByte(target, '/'); k >= 0 {
		if fd, err = openAt(u.root, target[:k], dirFlags, 0, unix.RESOLVE_BENEATH); err != nil {
			return err
		}
		defer unix.Close(fd)
		from, fromBase = fd, target[k+1:]
	}
	if err := clear(dir, base); err != nil {
		return err
	}
	return unix.Linkat(from, fromBase, dir, base, 0)
}

func setTime(dir int, base string, m *member) {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: m.mtime, Nsec: m.nsec}}
	_ = unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW)
}
