package kernel_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/backend/microvm/kernel/kerneltest"
	"github.com/opendsec/dsec/internal/debkernel"
)

// built puts a kernel of that version below cache, and returns its directory.
func built(t *testing.T, cache, version, compiler string) string {
	t.Helper()
	dir, err := kerneltest.Put(cache, version, compiler)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantNewest(t *testing.T, cache, dir string) {
	t.Helper()
	got := ""
	if r := kernel.Newest(cache); r != nil {
		got = r.Dir
	}
	if got != dir {
		t.Errorf("the newest is %q, want %q", got, dir)
	}
}

// TestNewest: of those that are whole and of this program's configuration the newest version, by its numbers, and of two of that the
// later built.
func TestNewest(t *testing.T) {
	cache := t.TempDir()
	wantNewest(t, cache, "")
	old := built(t, cache, "6.12.99", "gcc 12")
	wantNewest(t, cache, old)
	first := built(t, cache, "6.12.117", "gcc 12")
	second := built(t, cache, "6.12.117", "gcc 13")
	for dir, at := range map[string]time.Time{first: time.Now().Add(-time.Hour), second: time.Now()} {
		if err := os.Chtimes(filepath.Join(dir, "source"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	wantNewest(t, cache, second)
	var order []string
	for _, r := range kernel.List(cache) {
		order = append(order, r.Dir)
	}
	if want := []string{old, first, second}; !slices.Equal(order, want) {
		t.Errorf("in order: %q, want %q", order, want)
	}
}

// TestUnfit: a kernel that is not whole, or of another configuration, is there and is not taken.
func TestUnfit(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(dir string) error
	}{
		{"whole", "", func(string) error { return nil }},
		{"without its source", "not finished", func(dir string) error { return os.Remove(filepath.Join(dir, "source")) }},
		{"other configuration", "of another configuration", func(dir string) error { return os.Rename(dir, dir[:len(dir)-10]+"0123456789") }},
		{"other compiler", "of another configuration", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "source"), []byte("linux-source-6.12 6.12.117-1, gcc 99\n"), 0o644)
		}},
		{"source without words", "of another configuration", func(dir string) error { return os.WriteFile(filepath.Join(dir, "source"), nil, 0o644) }},
		{"cut off", "damaged: its end is missing", func(dir string) error {
			image := filepath.Join(dir, "boot", "vmlinux-6.12.117-dsec")
			st, err := os.Stat(image)
			if err != nil {
				return err
			}
			return os.Truncate(image, st.Size()-1)
		}},
		{"empty", "damaged: it is no whole ELF file", func(dir string) error {
			return os.Truncate(filepath.Join(dir, "boot", "vmlinux-6.12.117-dsec"), 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := t.TempDir()
			if err := c.spoil(built(t, cache, "6.12.117", "gcc 12")); err != nil {
				t.Fatal(err)
			}
			list := kernel.List(cache)
			if len(list) != 1 {
				t.Fatalf("%d kernels", len(list))
			}
			if got := kernel.Unfit(list[0]); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("unfit: %q, want %q", got, c.want)
			}
			if c.want == "" {
				wantNewest(t, cache, list[0].Dir)
			} else {
				wantNewest(t, cache, "")
			}
		})
	}
}

// TestHalfBuilt: a directory without a kernel, and the tree of a build that is under way, are none.
func TestHalfBuilt(t *testing.T) {
	cache := t.TempDir()
	for _, d := range []string{"kernel-own-6.12.1-a/boot", ".kernel-build-6.12.117/out/boot"} {
		if err := os.MkdirAll(filepath.Join(cache, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cache, ".kernel-build-6.12.117/out/boot/vmlinux-6.12.117-dsec"), kerneltest.ELF(elf.EM_X86_64, "x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if list := kernel.List(cache); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestBuilt: what was built is a kernel as others are, without modules.
func TestBuilt(t *testing.T) {
	cache := t.TempDir()
	dir := built(t, cache, "6.12.117", "gcc 12")
	r, err := debkernel.Find(&debkernel.Options{Cache: dir})
	if err != nil {
		t.Fatal(err)
	}
	if r.Version != "6.12.117-dsec" || r.Package != filepath.Base(dir) || !r.Own || r.Image() != filepath.Join(dir, "boot/vmlinux-6.12.117-dsec") {
		t.Errorf("%+v", r)
	}
	if m, err := r.Modules(t.Context(), "virtio_blk"); err != nil || len(m) != 0 {
		t.Errorf("modules %v, %v", m, err)
	}
	if b, err := r.Vmlinux(); err != nil || string(b) != string(kerneltest.ELF(elf.EM_X86_64, "6.12.117")) {
		t.Errorf("%q, %v", b, err)
	}
}
