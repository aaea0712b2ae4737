// Package users resolves the names in a request to ids, from the sandbox's own /etc/passwd and /etc/group. Both
// are hostile input: they are read up to MaxFile bytes, only if they are regular files, and parsed by hand.
package users

import (
	"errors"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxFile bounds what is read of each file, in bytes; MaxGroups the supplementary groups of a user.
const (
	MaxFile   = 1 << 20
	MaxGroups = 256
)

// ErrUnknown is returned for a name that neither file knows.
var ErrUnknown = errors.New("no such user or group in the sandbox's /etc/passwd and /etc/group")

// User is a resolved one.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Name     string // as /etc/passwd has it; else the number
	Home     string
	Shell    string
}

// Root is the user where nothing is said and /etc/passwd does not tell more.
var root = User{Name: "root", Home: "/root", Groups: []uint32{0}}

// Cache looks users up and remembers them until one of the files changes. Not safe for concurrent use.
type Cache struct {
	passwd, group Stamp
	known         map[string]User
}

// Stamp identifies a version of a file.
type Stamp struct {
	ino, size, sec, nsec int64
}

// Cached returns a user that was looked up before and is still valid.
func (c *Cache) Cached(spec string) (User, bool) {
	u, ok := c.known[spec]
	if !ok || c.passwd != stampOf("/etc/passwd") || c.group != stampOf("/etc/group") {
		return User{}, false
	}
	return u, true
}

// Add remembers a result of Lookup, with the stamps taken before it.
func (c *Cache) Add(spec string, u User, passwd, group Stamp) {
	if c.known == nil || len(c.known) > 64 || passwd != c.passwd || group != c.group {
		c.known = make(map[string]User)
	}
	c.passwd, c.group = passwd, group
	c.known[spec] = u
}

// Forget drops what is remembered.
func (c *Cache) Forget() { c.known = nil }

// Stamps identifies the versions of both files.
func Stamps() (passwd, group Stamp) { return stampOf("/etc/passwd"), stampOf("/etc/group") }

func stampOf(path string) Stamp {
	var st unix.Stat_t
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return Stamp{}
	}
	// Asked before every command, by a loop that keeps Go's scheduler out of its system calls.
	const cwd = ^uintptr(99) // AT_FDCWD
	if _, _, e := unix.RawSyscall6(unix.SYS_NEWFSTATAT, cwd, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&st)), 0, 0, 0); e != 0 {
		return Stamp{}
	}
	return Stamp{int64(st.Ino), st.Size, st.Mtim.Sec, st.Mtim.Nsec}
}

// Lookup resolves "", NAME, NAME:GROUP, UID, UID:GID and mixtures. Numbers need no entry. It reads files and
// may block on a slow disk.
func Lookup(spec string) (User, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" && !hasGroup {
		name = "0"
	}
	if name == "" || hasGroup && group == "" {
		return User{}, ErrUnknown
	}
	u, err := lookupUser(name)
	if err != nil {
		return User{}, err
	}
	groups := read("/etc/group")
	if hasGroup {
		gid, err := lookupGroup(groups, group)
		if err != nil {
			return User{}, err
		}
		u.GID, u.Groups = gid, []uint32{gid}
		return u, nil
	}
	u.Groups = []uint32{u.GID}
	lines(groups, 4, func(f []string) bool {
		gid, ok := number(f[2])
		if ok && gid != u.GID && listed(f[3], u.Name) {
			u.Groups = append(u.Groups, gid)
		}
		return len(u.Groups) < MaxGroups
	})
	return u, nil
}

func lookupUser(name string) (User, error) {
	id, numeric := number(name)
	var u User
	found := false
	lines(read("/etc/passwd"), 7, func(f []string) bool {
		uid, ok1 := number(f[2])
		gid, ok2 := number(f[3])
		// A name wins over a number, as in useradd's world; a numeric name does not exist.
		if !ok1 || !ok2 || f[0] != name && !(numeric && uid == id) {
			return true
		}
		u = User{UID: uid, GID: gid, Name: f[0], Home: f[5], Shell: f[6]}
		found = true
		return false
	})
	switch {
	case found:
		if u.Home == "" {
			u.Home = "/"
		}
		return u, nil
	case numeric && id == 0, name == "root":
		return root, nil
	case numeric:
		return User{UID: id, Name: name, Home: "/"}, nil
	}
	return User{}, ErrUnknown
}

func lookupGroup(groups, name string) (uint32, error) {
	id, numeric := number(name)
	found := numeric
	lines(groups, 4, func(f []string) bool {
		gid, ok := number(f[2])
		if ok && f[0] == name {
			id, found = gid, true
			return false
		}
		return true
	})
	if !found {
		return 0, ErrUnknown
	}
	return id, nil
}

// Owner resolves "USER" or "USER:GROUP" to ids for chown.
func Owner(spec string) (uid, gid uint32, err error) {
	u, err := Lookup(spec)
	return u.UID, u.GID, err
}

func number(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	// The highest id means "no id" to the kernel.
	return uint32(n), err == nil && n != 1<<32-1
}

// lines calls f with the fields of each line that has at least n, until it returns false.
func lines(text string, n int, f func([]string) bool) {
	fields := make([]string, 0, 8)
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		fields = fields[:0]
		for len(fields) < 8 {
			field, rest, more := strings.Cut(line, ":")
			fields = append(fields, field)
			if !more {
				break
			}
			line = rest
		}
		if len(fields) >= n && !f(fields) {
			return
		}
	}
}

func listed(members, name string) bool {
	for members != "" {
		var m string
		m, members, _ = strings.Cut(members, ",")
		if m == name {
			return true
		}
	}
	return false
}

// read returns a file's text, or "" for what is not a readable regular file.
func read(path string) string {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	size := min(max(st.Size, 0), MaxFile)
	b := make([]byte, size)
	n := 0
	for n < len(b) {
		m, err := unix.Read(fd, b[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || m <= 0 {
			break
		}
		n += m
	}
	return string(b[:n])
}
