package files

import (
	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// maxDirectories bounds those that wait to be visited.
const maxDirectories = 16 << 10

// Directories visits a directory and, when deep, those beneath it: dir is called with a descriptor of each, open for
// reading, and its name relative to root ("" = root itself), before its entries are looked at; entry, unless nil, then with
// each of its entries. rel is the one to begin with, relative to root too. Symbolic links below root are not followed, and what
// cannot be read or vanishes meanwhile is left out, except the first. An error of dir ends it, and so do more directories than
// are worth remembering (CodeExhausted).
func Directories(root, rel string, deep bool, dir func(fd int, rel string) error, entry func(rel string, dir bool)) error {
	top, err := open(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fail("watch", root, err)
	}
	defer unix.Close(top)
	// Opened anew by name each, so that however deep a tree is, two descriptors are enough.
	left := []string{rel}
	for first := true; len(left) > 0; first = false {
		rel := left[len(left)-1]
		left = left[:len(left)-1]
		name := rel
		if name == "" {
			name = "."
		}
		more, err := directory(top, name, rel, deep, maxDirectories-len(left), dir, entry)
		if stop, ok := err.(stopped); ok {
			return stop.error
		}
		if err != nil && first {
			return fail("watch", root, err)
		}
		left = append(left, more...)
	}
	return nil
}

// stopped is an error of the visitor.
type stopped struct{ error }

func directory(top int, name, rel string, deep bool, room int, dir func(fd int, rel string) error, entry func(rel string, dir bool)) (below []string, err error) {
	fd, err := openAt(top, name, unix.O_RDONLY|unix.O_DIRECTORY, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if procfs(fd) {
		return nil, errProc
	}
	if err := dir(fd, rel); err != nil {
		return nil, stopped{err}
	}
	if !deep && entry == nil {
		return nil, nil
	}
	return below, each(fd, func(name string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil
		}
		full := name
		if rel != "" {
			full = rel + "/" + name
		}
		is := kind(&st) == unix.S_IFDIR
		if entry != nil {
			entry(full, is)
		}
		if is && deep && len(below) >= room {
			return stopped{&wire.Error{Code: wire.CodeExhausted, Message: "watch: there are too many directories"}}
		}
		if is && deep {
			below = append(below, full)
		}
		return nil
	})
}
