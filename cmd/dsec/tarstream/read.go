package tarstream

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// Extract unpacks an archive beneath dir. The archive is not trusted: no name and no link of it, nor one that is
// there already, leads outside dir (os.Root); devices, setuid bits and owners are not taken over. left,
// when set, hears of what is left out.
func Extract(r io.Reader, dir string, left *Left) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(r)
	type later struct {
		name string
		mode fs.FileMode
		at   time.Time
	}
	var dirs []later // their modes are set last: one may forbid writing into it
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := path.Clean("/" + h.Name)[1:]
		if name == "" {
			name = "."
		}
		mode := fs.FileMode(h.Mode) & 0o777
		switch {
		case h.Typeflag == tar.TypeFifo:
			left.add(name, "a fifo")
		case h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock:
			left.add(name, "a device")
		case h.Typeflag == tar.TypeReg && h.Mode&0o6000 != 0:
			left.add(name, "its setuid and setgid bits")
		}
		if err := extractOne(root, t, h, name, mode); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir && name != "." {
			dirs = append(dirs, later{name, mode, h.ModTime})
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := root.Chmod(dirs[i].name, dirs[i].mode); err != nil {
			return fmt.Errorf("unpack %q: %w", dirs[i].name, err)
		}
		_ = root.Chtimes(dirs[i].name, dirs[i].at, dirs[i].at)
	}
	return nil
}

func extractOne(root *os.Root, t *tar.Reader, h *tar.Header, name string, mode fs.FileMode) error {
	if h.Typeflag == tar.TypeDir {
		err := root.MkdirAll(name, 0o700)
		return err
	}
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	// A file is replaced, never written through: it may be a link.
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		if err == nil {
			err = f.Chmod(mode)
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			_ = root.Chtimes(name, h.ModTime, h.ModTime)
		}
		return err
	case tar.TypeSymlink:
		err := root.Symlink(h.Linkname, name)
		if err == nil {
			_ = linux.SetLinkTime(root, name, h.ModTime)
		}
		return err
	case tar.TypeLink:
		return root.Link(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), name)
	default:
		return nil // devices, fifos
	}
}
