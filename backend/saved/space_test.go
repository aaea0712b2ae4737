package saved

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// open makes a Space of root alone that leaves next to nothing free.
func open(t *testing.T, root string, limit int64) *Space {
	t.Helper()
	s, err := Open(filepath.Dir(root), Options{Limit: limit, Floor: 1, Places: []Place{{Root: root}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// save writes as the backends do: beside the name first, then there.
func save(t *testing.T, path string, size int) {
	t.Helper()
	fresh := path + qemu.NewSuffix
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fresh, "ram"), size)
	if err := os.Rename(fresh, path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
		t.Fatal(err)
	}
}

// takes is what a path takes.
func takes(t *testing.T, path string) int64 {
	t.Helper()
	n, err := Bytes(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func wantUsed(t *testing.T, s *Space, want int64) {
	t.Helper()
	if _, used, err := s.Usage(); err != nil || used != want {
		t.Errorf("%d bytes are used, %v; want %d", used, err, want)
	}
}

// wantRoom looks whether there is room for exactly so much more.
func wantRoom(t *testing.T, s *Space, root string, want int64) {
	t.Helper()
	probe := filepath.Join(root, "probe")
	r, err := s.Reserve(probe, want)
	if err != nil {
		t.Errorf("no room for %d: %v", want, err)
	}
	r.Close()
	if _, err := s.Reserve(probe, want+1); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("room for more than %d: %v", want, err)
	}
}

// TestManyAtOnce: saves that begin at once do not pass the bound together; afterwards what they wrote counts, and no more.
func TestManyAtOnce(t *testing.T) {
	root := filepath.Join(t.TempDir(), "snapshots")
	const most, fit = 1 << 20, 7
	s := open(t, root, fit*most+most/2)
	var begun, ended sync.WaitGroup
	begun.Add(4 * fit)
	var mu sync.Mutex
	var got []string
	for k := range 4 * fit {
		ended.Go(func() {
			path := filepath.Join(root, fmt.Sprint(k))
			r, err := s.Reserve(path, most)
			begun.Done()
			begun.Wait()
			if err != nil {
				if !errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), "--opt saved-space") {
					t.Error(err)
				}
				return
			}
			defer r.Close()
			save(t, path, most/4)
			mu.Lock()
			got = append(got, path)
			mu.Unlock()
		})
	}
	ended.Wait()
	if len(got) != fit {
		t.Errorf("%d were let in; there is room for %d", len(got), fit)
	}
	var all int64
	for _, path := range got {
		all += takes(t, path)
	}
	wantUsed(t, s, all)
	wantRoom(t, s, root, fit*most+most/2-all)
}

// TestWhatIsThere: what an earlier process saved is known, and what is removed, added or made anew by others; a file with several
// names is one.
func TestWhatIsThere(t *testing.T) {
	state := t.TempDir()
	root, machines := filepath.Join(state, "snapshots"), filepath.Join(state, "machines")
	places := []Place{{Root: root}, {Root: machines, Names: []string{"saved", "memory"}}}
	for _, name := range []string{"a", "b"} {
		save(t, filepath.Join(root, name), 100<<10)
	}
	if err := os.MkdirAll(filepath.Join(machines, "m", "saved"+qemu.NewSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(machines, "m", "saved"+qemu.NewSuffix, "ram"), 50<<10)
	write(t, filepath.Join(machines, "m", "disk.raw"), 10<<20) // is the machine's, and not saved
	if err := os.Link(filepath.Join(root, "a", "ram"), filepath.Join(machines, "m", "memory")); err != nil {
		t.Fatal(err)
	}
	// Long ago, so that what is measured is remembered.
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"a", "b"} {
		if err := os.Chtimes(filepath.Join(root, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(state, Options{Limit: 1 << 30, Floor: 1, Places: places})
	if err != nil {
		t.Fatal(err)
	}
	half := takes(t, filepath.Join(machines, "m", "saved"+qemu.NewSuffix))
	for range 2 {
		wantUsed(t, s, takes(t, filepath.Join(root, "a"))+takes(t, filepath.Join(root, "b"))+half)
	}
	// The files of a pack, which come later.
	before := takes(t, filepath.Join(root, "a"))
	if err := os.MkdirAll(filepath.Join(root, "a", "upper", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "a", "upper", "deep", "file"), 30<<10)
	if err := os.Link(filepath.Join(root, "a", "upper", "deep", "file"), filepath.Join(root, "a", "upper", "again")); err != nil {
		t.Fatal(err)
	}
	if n := takes(t, filepath.Join(root, "a")) - before; n > 60<<10 {
		t.Errorf("a file with two names takes %d", n)
	}
	wantUsed(t, s, takes(t, filepath.Join(root, "a"))+takes(t, filepath.Join(root, "b"))+half)
	// A snapshot is gone whose memory a machine still maps.
	if err := os.RemoveAll(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	memory := takes(t, filepath.Join(machines, "m", "memory"))
	wantUsed(t, s, memory+takes(t, filepath.Join(root, "b"))+half)
	if err := os.RemoveAll(filepath.Join(machines, "m")); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, s, takes(t, filepath.Join(root, "b")))
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, s, 0)
}

// TestReservation: it counts instead of what is written in it, may become smaller or, where there is room, larger, and is given back.
func TestReservation(t *testing.T) {
	root := filepath.Join(t.TempDir(), "snapshots")
	s := open(t, root, 1<<20)
	a, err := s.Reserve(filepath.Join(root, "a"), 600<<10)
	if err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(root, "a"+qemu.NewSuffix)
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fresh, "ram"), 300<<10)
	wantUsed(t, s, 600<<10)
	wantRoom(t, s, root, 424<<10)
	if _, err := s.Reserve(filepath.Join(root, "b"), 425<<10); err == nil || !strings.Contains(err.Error(), "it may take 425 KiB, and of 1024 KiB") ||
		!strings.Contains(err.Error(), "by what is being saved just now") {
		t.Errorf("no room for b: %v", err)
	}
	if _, err := s.Reserve(filepath.Join(root, "b"), 2<<20); err == nil || !strings.Contains(err.Error(), "a greater --opt saved-space") {
		t.Errorf("more than is ever saved: %v", err)
	}
	b, err := s.Reserve(filepath.Join(root, "b"), 424<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Resize(425 << 10); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("larger without room: %v", err)
	}
	wantUsed(t, s, 1<<20)
	if err := a.Resize(500 << 10); err != nil {
		t.Error(err)
	}
	if err := b.Resize(524 << 10); err != nil {
		t.Error(err)
	}
	wantRoom(t, s, root, 0)
	// a fails and leaves nothing, b fails before anything is written.
	if err := os.RemoveAll(fresh); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	wantUsed(t, s, 0)
	wantRoom(t, s, root, 1<<20)
}

// small is a directory with a file system of its own.
func small(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return dir
}

// TestFloor: some room stays free on the file system, whoever takes the rest, with what is reserved and not written yet; without a bound that is
// said it is half of what was free, or saved, at first.
func TestFloor(t *testing.T) {
	dir := small(t, "64m")
	root := filepath.Join(dir, "snapshots")
	save(t, filepath.Join(root, "a"), 20<<20)
	s, err := Open(dir, Options{Floor: 16 << 20, Places: []Place{{Root: root}}})
	if err != nil {
		t.Fatal(err)
	}
	if size, used, err := s.Usage(); err != nil || size != 32<<20 || used != 20<<20 {
		t.Errorf("%d of %d, %v", used, size, err)
	}
	wantRoom(t, s, root, 12<<20)
	write(t, filepath.Join(dir, "others"), 20<<20) // 24 are free
	wantRoom(t, s, root, 8<<20)
	b, err := s.Reserve(filepath.Join(root, "b"), 6<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	wantRoom(t, s, root, 2<<20)
	if err := os.MkdirAll(filepath.Join(root, "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "b", "ram"), 4<<20)
	wantRoom(t, s, root, 2<<20)
	_, err = s.Reserve(filepath.Join(root, "c"), 3<<20)
	if !errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), "it may take 3072 KiB, and the disk of the node's state has 20 MiB free, of which 16 MiB stay free and 2048 KiB") {
		t.Errorf("%v", err)
	}
	// What is not saved counts only there.
	to := filepath.Join(dir, "machine")
	if err := s.Copy(t.Context(), to, filepath.Join(root, "a", "ram")); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("a copy of 20 MiB: %v", err)
	}
	if _, err := os.Lstat(to); err == nil {
		t.Error("a copy was begun")
	}
	write(t, filepath.Join(root, "b", "disk"), 1<<20)
	if err := s.Copy(t.Context(), to, filepath.Join(root, "b", "disk")); err != nil {
		t.Error(err)
	}
	wantUsed(t, s, 26<<20)
}

// TestNoBound: a nil Space bounds nothing.
func TestNoBound(t *testing.T) {
	var s *Space
	r, err := s.Reserve("/nowhere", 1<<60)
	if err != nil || r.Resize(1<<61) != nil {
		t.Errorf("%v", err)
	}
	r.Close()
	from := filepath.Join(t.TempDir(), "from")
	write(t, from, 10)
	if err := s.Copy(t.Context(), from+"2", from); err != nil {
		t.Error(err)
	}
}
