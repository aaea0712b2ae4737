package ext4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// image makes a file system as machines have it, of a directory.
func image(t testing.TB, from string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096", "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-d", from, path, "32m").CombinedOutput()
	if err != nil {
		t.Skipf("mke2fs: %v: %s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listing tells all that is to be the same.
func listing(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(root, func(path string, st os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		s := st.Sys().(*syscall.Stat_t)
		content := ""
		switch {
		case st.Mode()&os.ModeSymlink != 0:
			content, _ = os.Readlink(path)
		case st.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%d %x", len(b), bytes.TrimRight(b[:min(len(b), 100)], "\x00"))
		}
		opaque := make([]byte, 16)
		n, _ := syscall.Getxattr(path, "trusted.overlay.opaque", opaque)
		at := st.ModTime().Unix() // mke2fs writes no more
		if st.Mode()&(os.ModeSymlink|os.ModeDevice) != 0 {
			at = 0
		}
		fmt.Fprintf(&out, "%s %v %d:%d rdev %d links %d at %d %q %s\n", strings.TrimPrefix(path, root), st.Mode(), s.Uid, s.Gid, s.Rdev,
			map[bool]uint64{true: 0, false: uint64(s.Nlink)}[st.IsDir()], at, opaque[:max(n, 0)], content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// tree makes a directory with all that an upper directory can have.
func tree(t testing.TB) (outer, upper string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	outer = t.TempDir()
	upper = filepath.Join(outer, "upper")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"etc", "deep/er/still", "many", "opaque"} {
		must(os.MkdirAll(filepath.Join(upper, d), 0o755))
	}
	for i := range 90 {
		must(os.WriteFile(filepath.Join(upper, "many", fmt.Sprintf("a-name-that-is-rather-long-%d", i)), []byte{byte(i)}, 0o600))
	}
	big, err := os.Create(filepath.Join(upper, "holes"))
	must(err)
	for at := int64(0); at < 8<<20; at += 256 << 10 {
		_, err := big.WriteAt([]byte("data"), at)
		must(err)
	}
	must(errors.Join(big.Truncate(9<<20), big.Close()))
	must(os.WriteFile(filepath.Join(upper, "etc/passwd"), []byte("root\n"), 0o640))
	must(os.Lchown(filepath.Join(upper, "etc/passwd"), 70000, 5))
	must(os.Chmod(filepath.Join(upper, "etc/passwd"), 0o4750|os.ModeSetuid))
	must(os.Link(filepath.Join(upper, "etc/passwd"), filepath.Join(upper, "deep/er/again")))
	must(os.Symlink("../x", filepath.Join(upper, "deep/short")))
	must(os.Symlink(strings.Repeat("long/", 40), filepath.Join(upper, "deep/long")))
	must(syscall.Mkfifo(filepath.Join(upper, "fifo"), 0o644))
	must(syscall.Mknod(filepath.Join(upper, "gone"), syscall.S_IFCHR, 0))
	must(syscall.Setxattr(filepath.Join(upper, "opaque"), "trusted.overlay.opaque", []byte("y"), 0))
	return outer, upper
}

// TestExtract: a directory comes out as it went in.
func TestExtract(t *testing.T) {
	outer, upper := tree(t)
	b := image(t, outer)
	to := t.TempDir()
	if err := Extract(t.Context(), bytes.NewReader(b), Limits{Size: int64(len(b))}, "upper", to, "trusted.overlay.opaque"); err != nil {
		t.Fatal(err)
	}
	got, want := listing(t, to), listing(t, upper)
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	if len(g) != len(w) {
		t.Fatalf("%d entries, want %d", len(g), len(w))
	}
	for i := 1; i < len(g); i++ { // the first is the directory itself
		if g[i] != w[i] {
			t.Errorf("got  %s\nwant %s", g[i], w[i])
		}
	}
	if err := Extract(t.Context(), bytes.NewReader(b), Limits{Size: int64(len(b))}, "lower", t.TempDir()); !errors.Is(err, ErrBroken) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestDamaged: whatever bytes are changed, it comes to an end, in an error or not, and makes nothing outside of its directory.
func TestDamaged(t *testing.T) {
	outer, _ := tree(t)
	b := image(t, outer)
	var at []int // where the file system's own structures are
	for i := range len(b) / 4096 {
		if !bytes.Equal(b[i*4096:(i+1)*4096], make([]byte, 4096)) {
			at = append(at, i*4096)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 20 {
		bad := bytes.Clone(b)
		for range 40 {
			k := at[r.IntN(min(len(at), 40))] + r.IntN(4096)
			bad[k] = byte(r.Uint32())
		}
		around := t.TempDir()
		to := filepath.Join(around, "to")
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Extract(t.Context(), bytes.NewReader(bad), Limits{Size: int64(len(bad))}, "upper", to); err != nil {
			refused++
		}
		if left, err := os.ReadDir(around); err != nil || len(left) != 1 {
			t.Fatalf("beside it: %v, %v", left, err)
		}
		if err := os.RemoveAll(around); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestRefuses: what a guest can write to mislead.
func TestRefuses(t *testing.T) {
	outer, _ := tree(t)
	b := image(t, outer)
	for name, change := range map[string]func([]byte){
		"no magic":             func(b []byte) { b[1024+56] = 0 },
		"a feature":            func(b []byte) { b[1024+97] |= 0x10 },
		"no inodes in a group": func(b []byte) { copy(b[1024+40:], []byte{0, 0, 0, 0}) },
		"a table outside":      func(b []byte) { copy(b[4096+8:], []byte{255, 255, 255, 127}) },
		"a name with a slash":  func(b []byte) { i := bytes.LastIndex(b, []byte("passwd")); b[i+2] = '/' },
		"empty":                func(b []byte) { clear(b) },
	} {
		bad := bytes.Clone(b)
		change(bad)
		if err := Extract(t.Context(), bytes.NewReader(bad), Limits{Size: int64(len(bad))}, "upper", t.TempDir()); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyOfOne: files that have all the same blocks take no more than the disk has, whatever the file system says of its size; and no
// more than there is room for.
func TestManyOfOne(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	outer := t.TempDir()
	upper := filepath.Join(outer, "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	random := func(name string, size int) {
		t.Helper()
		b := make([]byte, size)
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		if err := os.WriteFile(filepath.Join(upper, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const most, files = 1 << 20, 40 // of a disk of 32 MiB
	random("most", most)
	for k := range files {
		random(fmt.Sprint(k), 4096)
	}
	b := image(t, outer)
	find := func(name string) *inode {
		t.Helper()
		f, err := Open(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		i, err := f.inode(rootInode)
		for _, part := range []string{"upper", name} {
			if err == nil {
				i, err = f.lookup(i, part)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	whole := t.TempDir()
	var asked int64
	l := Limits{Size: int64(len(b)), Room: func(total int64) error { asked = total; return nil }}
	if err := Extract(t.Context(), bytes.NewReader(b), l, "upper", whole); err != nil || asked < most+files*4096 || asked > l.Size {
		t.Errorf("as it was: %d bytes, %v", asked, err)
	}
	full := errors.New("no room")
	l.Room = func(int64) error { return full }
	if err := Extract(t.Context(), bytes.NewReader(b), l, "upper", t.TempDir()); !errors.Is(err, full) {
		t.Errorf("without room: %v", err)
	}
	shared := find("most").data
	for k := range files {
		own := find(fmt.Sprint(k)).data
		at := bytes.Index(b, own[:])
		copy(b[at:], shared[:])
		binary.LittleEndian.PutUint32(b[at-36:], most)
	}
	binary.LittleEndian.PutUint32(b[1024+4:], 1<<30) // blocks
	if i := find("7"); i.size != most {
		t.Fatalf("a file of %d bytes", i.size)
	}
	to := t.TempDir()
	l.Room = nil
	if err := Extract(t.Context(), bytes.NewReader(b), l, "upper", to); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "more bytes than it has") {
		t.Errorf("%d times the same: %v", files, err)
	}
}
