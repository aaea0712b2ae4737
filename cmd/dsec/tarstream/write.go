// Package tarstream turns local directories into tar streams and tar streams into local directories.
package tarstream

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Options of Write.
type Options struct {
	// KeepOwner keeps user and group ids; otherwise everything is root's.
	KeepOwner bool
	// Name is what the root is called in the archive; "" = ".".
	Name string
	// Left, when set, hears of what is not taken over as it is.
	Left *Left
}

type inode struct{ dev, ino uint64 }

// Write writes the tree at root, in name order: directories, files, symbolic and hard links, devices and fifos.
// Sockets are left out. A file that changes its size meanwhile is an error.
func Write(w io.Writer, root string, o Options) error {
	if o.Name == "" {
		o.Name = "."
	}
	t := tar.NewWriter(w)
	seen := map[inode]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return add(t, p, path.Join(o.Name, filepath.ToSlash(rel)), o, seen)
	})
	if err != nil {
		return fmt.Errorf("archive %s: %w", root, err)
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("archive %s: %w", root, err)
	}
	return nil
}

func add(t *tar.Writer, p, name string, o Options, seen map[inode]string) error {
	st, err := os.Lstat(p)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSocket != 0 {
		o.Left.add(name, "a socket")
		return nil
	}
	target := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(st, target)
	if err != nil {
		return err
	}
	h.Name, h.Format = name, tar.FormatPAX
	if st.IsDir() {
		h.Name = strings.TrimSuffix(name, "/") + "/"
	}
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	h.Uname, h.Gname = "", ""
	if !o.KeepOwner {
		h.Uid, h.Gid = 0, 0
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && st.Mode().IsRegular() && sys.Nlink > 1 {
		key := inode{uint64(sys.Dev), sys.Ino}
		if first, ok := seen[key]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return t.WriteHeader(h)
		}
		seen[key] = h.Name
	}
	if st.Mode().IsRegular() || st.IsDir() {
		addXattrs(h, p)
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(t, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read: %w", p, io.ErrUnexpectedEOF)
	}
	return err
}

// addXattrs keeps file capabilities and user attributes; others are this machine's business.
func addXattrs(h *tar.Header, p string) {
	buf := make([]byte, 1024)
	n, err := syscall.Listxattr(p, buf)
	if err != nil {
		return
	}
	for _, name := range strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := syscall.Getxattr(p, name, value)
		if err != nil {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(value[:n])
	}
}
