package layertest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
)

// Mount attaches an image (data empty = none) with the kernel until the test ends, and returns where.
func Mount(t testing.TB, meta, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := linux.MountErofs(meta, data, dir, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := linux.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Fsck runs fsck.erofs, where it is installed, on an image and its blob.
func Fsck(t testing.TB, meta, data string) {
	t.Helper()
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs is not installed: not checked")
		return
	}
	args := []string{"--extract"}
	if data != "" {
		args = append(args, "--device="+data)
	}
	out, err := exec.Command(fsck, append(args, meta)...).CombinedOutput()
	if err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, out)
	}
}

// Describe walks a tree and describes every object by one line, keyed by its path below dir ("." = dir): type, mode, owner,
// time, size, links, attributes, content. Names of one file point to the first of them.
func Describe(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		out[rel], err = describe(path, rel, first)
		return err
	})
	if err != nil {
		t.Fatalf("describe %s: %v", dir, err)
	}
	return out
}

func describe(path, rel string, first map[uint64]string) (string, error) {
	st, err := linux.Lstat(path)
	if err != nil {
		return "", err
	}
	line := Line{
		Mode: st.Mode, UID: st.UID, GID: st.GID, Mtime: st.Mtime, MtimeNsec: st.MtimeNsec, Nlink: st.Nlink,
	}
	switch st.Mode & 0o170000 {
	case 0o100000:
		line.Size = st.Size
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return "", err
		}
		line.Content = fmt.Sprintf("%x", h.Sum(nil))
	case 0o120000:
		if line.Target, err = os.Readlink(path); err != nil {
			return "", err
		}
	case 0o020000, 0o060000:
		line.Major, line.Minor = st.Major, st.Minor
	case 0o040000:
		line.Nlink = 0 // file systems count them differently
	}
	if st.Nlink > 1 && st.Mode&0o170000 != 0o040000 {
		if f, ok := first[st.Ino]; ok {
			line.Same = f
		} else {
			first[st.Ino] = rel
		}
	}
	attrs, err := linux.Lxattrs(path)
	if err != nil {
		return "", err
	}
	line.Xattrs = map[string]string{}
	for _, a := range attrs {
		line.Xattrs[a.Name] = a.Value
	}
	return line.String(), nil
}

// Line is what Describe says about one object.
type Line struct {
	Mode, UID, GID uint32
	Mtime          int64
	MtimeNsec      uint32
	Size           int64
	Nlink          uint64 // 0 for directories
	Major, Minor   uint32
	Target         string
	Content        string // hex SHA-256
	Same           string // first path of the same file
	Xattrs         map[string]string
}

func (l Line) String() string {
	var attrs []string
	for k, v := range l.Xattrs {
		if k == "security.selinux" {
			continue
		}
		attrs = append(attrs, fmt.Sprintf("%s=%.60q/%d", k, v, len(v)))
	}
	slices.Sort(attrs)
	return fmt.Sprintf("%06o %d:%d %d.%09d size=%d nlink=%d dev=%d:%d ->%q %s same=%q [%s]", l.Mode, l.UID, l.GID,
		l.Mtime, l.MtimeNsec, l.Size, l.Nlink, l.Major, l.Minor, l.Target, l.Content, l.Same, strings.Join(attrs, " "))
}

// Compare reports every difference between two descriptions, at most twenty.
func Compare(t testing.TB, want, got map[string]string) {
	t.Helper()
	var diffs []string
	for path, w := range want {
		if g, ok := got[path]; !ok {
			diffs = append(diffs, fmt.Sprintf("%.200q is missing\n  want %.400s", path, w))
		} else if g != w {
			diffs = append(diffs, fmt.Sprintf("%.200q\n  want %.400s\n  got  %.400s", path, w, g))
		}
	}
	for path, g := range got {
		if _, ok := want[path]; !ok {
			diffs = append(diffs, fmt.Sprintf("%.200q should not be there\n  got  %.400s", path, g))
		}
	}
	slices.Sort(diffs)
	if n := len(diffs); n > 20 {
		diffs = append(diffs[:20], fmt.Sprintf("and %d more", n-20))
	}
	if len(diffs) > 0 {
		t.Errorf("trees differ:\n%s", strings.Join(diffs, "\n"))
	}
}
