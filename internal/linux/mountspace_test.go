package linux

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// parts are the stack of a test overlay: two lower layers and a writable one, of one kept tmpfs.
func parts(t *testing.T, s *MountSpace) *Overlay {
	t.Helper()
	m, err := NewMount("tmpfs", NoDev, Option{Key: "mode", Value: "755"}, Option{Key: "nr_inodes", Value: "64"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	for _, d := range []string{"a", "b", "w"} {
		if err := MkdirAt(m, d, 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err := OpenDirAt(m, d)
		if err != nil {
			t.Fatal(err)
		}
		if d == "w" {
			err = errors.Join(MkdirAt(dir, "upper", 0o755), MkdirAt(dir, "work", 0o755))
		} else {
			err = errors.Join(WriteAt(dir, d, []byte(d), 0o644), WriteAt(dir, "both", []byte(d), 0o644))
		}
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Keep("parts", m); err != nil {
		t.Fatal(err)
	}
	return stack(t, s, m)
}

func stack(t *testing.T, s *MountSpace, m *os.File) *Overlay {
	t.Helper()
	clone := func(path string) *os.File {
		c, err := s.Clone(m, path, NoDev, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	o := &Overlay{Lower: []*os.File{clone("b"), clone("a")}, Writable: clone("w")}
	var err error
	for _, d := range []struct {
		to   **os.File
		name string
	}{{&o.Upper, "upper"}, {&o.Work, "work"}} {
		if *d.to, err = OpenAt(o.Writable, d.name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*d.to).Close() })
	}
	return o
}

func read(t *testing.T, m *os.File, name string) string {
	t.Helper()
	fd, err := unix.Openat(int(m.Fd()), name, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b := make([]byte, 100)
	n, _ := f.Read(b)
	return string(b[:n])
}

// TestMountSpace makes overlays in both kinds of space; on an older kernel the first is of the second kind.
func TestMountSpace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for name, open := range map[string]func(string, *os.File) (*MountSpace, error){"default": OpenMountSpace, "attached": OpenAttachedMountSpace} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := open(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			t.Logf("attached: %v", s.Attached())
			o := parts(t, s)
			m, err := s.NewOverlay(o, NoDev, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if got := read(t, m, "a") + read(t, m, "b") + read(t, m, "both"); got != "abb" {
				t.Fatalf("overlay reads %q", got)
			}
			if err := WriteAt(m, "new", []byte("new"), 0o644); err != nil {
				t.Fatal(err)
			}
			// The second of the same parts is refused: they are attached no more, or in use.
			if err := s.Drop("parts"); err != nil {
				t.Fatal(err)
			}
			if got := read(t, m, "new") + read(t, m, "a"); got != "newa" {
				t.Fatalf("overlay reads %q once its parts are dropped", got)
			}
			if err := s.Drop("parts"); err != nil {
				t.Fatal(err)
			}
			if b, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(b), dir) {
				t.Fatal("a mount of the space is seen outside")
			}
			if err := s.Unmount(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestMountSpaceSuccessor: who holds the namespace finds the mounts, and what was cut off half-way is gone.
func TestMountSpaceSuccessor(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	s, err := OpenAttachedMountSpace(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	parts(t, s)
	kept, err := OpenAt(s.root, "parts")
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	// As if the process had died with parts attached.
	err = s.thread.do(func() error {
		area, err := CloneMount(s.root, areaName, 0, nil)
		if err != nil {
			return err
		}
		defer area.Close()
		return attach(area, s.root, areaName)
	})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := os.Open(filepath.Join("/proc/self/fd", filepath.Base(fdPath(s.Namespace()))))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s.Close()

	s, err = OpenMountSpace(dir, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, err := s.NewOverlay(stack(t, s, kept), NoDev, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got := read(t, m, "both"); got != "b" {
		t.Fatalf("overlay reads %q", got)
	}
	if err := s.Unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestOverlayWithoutRoom: the kernel would give a read-only overlay where the writable part is full, and no error.
func TestOverlayWithoutRoom(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for name, open := range map[string]func(string, *os.File) (*MountSpace, error){"default": OpenMountSpace, "attached": OpenAttachedMountSpace} {
		t.Run(name, func(t *testing.T) {
			s, err := open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			o := parts(t, s)
			n := 0
			for ; err == nil; n++ {
				err = MkdirAt(o.Upper, strconv.Itoa(n), 0o755)
			}
			if !NoRoom(err) || n < 2 {
				t.Fatalf("after %d directories: %v", n, err)
			}
			if m, err := s.NewOverlay(o, NoDev, 0); !errors.Is(err, ErrNoWorkDir) || !NoRoom(err) {
				t.Fatalf("an overlay %v on a full file system: %v", m, err)
			}
			if err := errors.Join(s.Drop("parts"), s.Unmount()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
