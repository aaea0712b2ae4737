package files

import (
	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// maxList bounds a listing, in bytes of its encoding.
const maxList = 1 << 20

// List lists at most limit entries down to depth, a directory before what is in it. Names are relative to path.
// What vanishes meanwhile is left out. Each has its attributes where they are wanted.
func List(path string, depth, limit int, attrs bool) (l []wire.FileInfo, truncated bool, err error) {
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, false, fail("list", path, err)
	}
	defer unix.Close(fd)
	if procfs(fd) {
		return nil, false, fail("list", path, errProc)
	}
	w := lister{limit: limit, attrs: attrs}
	if err := w.dir(fd, "", min(max(depth, 1), maxDepth)); err != nil && err != errFull {
		return nil, false, fail("list", path, err)
	} else if err == errFull {
		truncated = true
	}
	return w.files, truncated, nil
}

var errFull = &wire.Error{Message: "full"}

type lister struct {
	files []wire.FileInfo
	limit int
	size  int
	attrs bool
}

func (w *lister) dir(fd int, prefix string, depth int) error {
	return each(fd, func(name string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil
		}
		f := info(prefix+name, &st)
		if len(f.Path) >= 2*wire.MaxPath {
			return errFull
		}
		if kind(&st) == unix.S_IFLNK {
			f.Target, _ = readlink(fd, name)
		}
		if w.attrs {
			f.Attrs = attributes(func(with int) (int, error) {
				return openAt(fd, name, with|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH)
			}, st.Mode)
		}
		for _, a := range f.Attrs {
			w.size += len(a.Name) + len(a.Value) + 8
		}
		if w.size += len(f.Path) + len(f.Target) + 48; len(w.files) >= w.limit || w.size > maxList {
			return errFull
		}
		w.files = append(w.files, f)
		if depth <= 1 || kind(&st) != unix.S_IFDIR {
			return nil
		}
		sub, err := openAt(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH)
		if err != nil {
			return nil // not the user's to read: it is listed, what is in it is not
		}
		defer unix.Close(sub)
		if procfs(sub) {
			return nil
		}
		return w.dir(sub, prefix+name+"/", depth-1)
	})
}
