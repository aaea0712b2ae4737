package files

import (
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Owner is who a written file is to belong to; nil = the user who writes.
type Owner struct{ UID, GID uint32 }

// Temp is a file that is being written: a temporary one beside the target, which it replaces in the end.
type Temp struct {
	path  string
	dir   int
	base  string
	temp  string
	fd    int
	mode  uint32
	owner *Owner
}

// maxLinks bounds the symbolic links that are followed from a target to where the file really lies.
const maxLinks = 16

// OpenWrite begins to write a file. mode 0 keeps the old file's, else it is 0644.
func OpenWrite(path string, mode uint32, owner *Owner, parents bool) (*Temp, error) {
	t := &Temp{path: path, fd: -1, dir: -1, mode: mode & 0o7777, owner: owner}
	if err := t.open(path, parents); err != nil {
		t.Abort()
		return nil, fail("write", path, err)
	}
	return t, nil
}

func (t *Temp) open(path string, parents bool) error {
	for range maxLinks {
		dir, base, err := split(path)
		if err != nil {
			return err
		}
		if t.dir >= 0 {
			unix.Close(t.dir)
			t.dir = -1
		}
		if parents {
			t.dir, err = mkdirAll(dir, 0o755)
		} else {
			t.dir, err = open(dir, dirFlags, 0)
		}
		if err != nil {
			t.dir = -1
			return err
		}
		t.base = base
		var st unix.Stat_t
		switch err := unix.Fstatat(t.dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.ENOENT:
			if t.mode == 0 {
				t.mode = 0o644
			}
			return t.create()
		case err != nil:
			return err
		case kind(&st) == unix.S_IFLNK:
			target, err := readlink(t.dir, base)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(target, "/") {
				target = strings.TrimRight(dir, "/") + "/" + target
			}
			if path = target; len(path) >= wire.MaxPath {
				return unix.ENAMETOOLONG
			}
			continue
		case kind(&st) == unix.S_IFDIR:
			return unix.EISDIR
		case kind(&st) != unix.S_IFREG:
			return &wire.Error{Code: wire.CodeInvalid, Message: "not a regular file"}
		}
		if t.mode == 0 {
			t.mode = st.Mode & 0o7777
		}
		// The new file replaces the old one, which the user must have been allowed to write.
		if fd, err := openAt(t.dir, base, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0, 0); err != nil {
			if err != unix.ETXTBSY {
				return err
			}
		} else {
			unix.Close(fd)
		}
		return t.create()
	}
	return unix.ELOOP
}

func (t *Temp) create() error {
	if procfs(t.dir) {
		return errProc
	}
	for range 4 {
		var r [8]byte
		if _, err := unix.Getrandom(r[:], 0); err != nil {
			return err
		}
		var n uint64
		for _, b := range r {
			n = n<<8 | uint64(b)
		}
		name := ".dsec-" + strconv.FormatUint(n, 36) + ".tmp"
		fd, err := openAt(t.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, 0)
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return err
		}
		t.fd, t.temp = fd, name
		return nil
	}
	return unix.EEXIST
}

// Fill copies r into the file.
func (t *Temp) Fill(r io.Reader) error {
	buf, err := buffer()
	if err != nil {
		return fail("write", t.path, err)
	}
	defer unix.Munmap(buf)
	for {
		n, err := r.Read(buf)
		if werr := writeAll(t.fd, buf[:n]); werr != nil {
			return fail("write", t.path, werr)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Commit puts the file in its place.
func (t *Temp) Commit() error {
	var err error
	if t.owner != nil {
		err = unix.Fchown(t.fd, int(t.owner.UID), int(t.owner.GID))
	}
	if err == nil {
		err = unix.Fchmod(t.fd, t.mode) // after chown, which clears the set-id bits
	}
	if err == nil {
		err = unix.Renameat(t.dir, t.temp, t.dir, t.base)
	}
	if err != nil {
		return fail("write", t.path, err)
	}
	t.temp = ""
	return nil
}

// Abort releases what the file holds and, before Commit, removes the temporary file. Call always.
func (t *Temp) Abort() {
	if t.temp != "" {
		_ = unix.Unlinkat(t.dir, t.temp, 0)
		t.temp = ""
	}
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	if t.dir >= 0 {
		unix.Close(t.dir)
		t.dir = -1
	}
}
