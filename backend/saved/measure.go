package saved

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
)

// Place is where what is saved lies: each entry of Root, or, where there are Names, what is named so in each of them.
type Place struct {
	Root  string
	Names []string // or these and qemu.NewSuffix
}

// file is a file, or all that lies deeper in a directory (ino 0).
type file struct {
	dev, ino uint64
	bytes    int64
}

// sum counts each file once, by whatever names it is there.
func sum(files []file) (n int64) {
	type inode struct{ dev, ino uint64 }
	once := map[inode]bool{}
	for _, f := range files {
		if k := (inode{f.dev, f.ino}); f.ino == 0 || !once[k] {
			once[k] = true
			n += f.bytes
		}
	}
	return n
}

// measured is what a directory held. What is saved does not change but by files that come and go in its directory.
type measured struct {
	changed time.Time // of the directory
	files   []file
}

// settled is how long a directory must have been left alone until its time of change tells that it has not changed since.
const settled = 2 * time.Second

// measure sums up what lies in the places and is nobody's. s.mu is held.
func (s *Space) measure() (int64, error) {
	var files []file
	there := map[string]*measured{}
	for _, p := range s.places {
		paths, err := p.entries()
		if err != nil {
			return 0, err
		}
		for _, path := range paths {
			if s.holds(path) {
				continue
			}
			m, err := entry(path, s.seen[path])
			if err != nil {
				return 0, err
			}
			there[path] = m
			files = append(files, m.files...)
		}
	}
	s.seen = there
	return sum(files), nil
}

// entries are the paths of a place; some may be gone.
func (p Place) entries() (out []string, err error) {
	in, err := os.ReadDir(p.Root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range in {
		path := filepath.Join(p.Root, e.Name())
		if len(p.Names) == 0 {
			out = append(out, path)
			continue
		}
		if !e.IsDir() {
			continue
		}
		inner, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, f := range inner {
			if slices.Contains(p.Names, strings.TrimSuffix(f.Name(), qemu.NewSuffix)) {
				out = append(out, filepath.Join(path, f.Name()))
			}
		}
	}
	return out, nil
}

// entry measures one, unless it is as it was.
func entry(path string, was *measured) (*measured, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return &measured{}, nil
	}
	if err != nil {
		return nil, err
	}
	if was != nil && st.IsDir() && was.changed.Equal(st.ModTime()) {
		return was, nil
	}
	m := &measured{}
	if m.files, err = walk(path); err != nil {
		return nil, err
	}
	if time.Since(st.ModTime()) > settled {
		m.changed = st.ModTime()
	}
	return m, nil
}

// walk measures what lies at a path: itself, the files of the directory, and what lies deeper. Nothing is nothing.
func walk(path string) (out []file, err error) {
	var deepest file
	var linked []file
	err = filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil {
			err = syscall.Lstat(at, &st)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		f := file{uint64(st.Dev), st.Ino, st.Blocks * 512}
		switch {
		case at == path || filepath.Dir(at) == path:
			out = append(out, f)
		case d.IsDir() || st.Nlink == 1:
			deepest.bytes += f.bytes
		default: // it may have several names there
			linked = append(linked, f)
		}
		return nil
	})
	if deepest.bytes += sum(linked); deepest.bytes > 0 {
		out = append(out, deepest)
	}
	return out, err
}

// Bytes is what path takes on its file system, with all that lies in it; 0 for nothing.
func Bytes(path string) (int64, error) {
	files, err := walk(path)
	return sum(files), err
}
