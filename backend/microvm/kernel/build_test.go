package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/debkernel"
)

// TestDiffers: a line that the source did not take is named.
func TestDiffers(t *testing.T) {
	const got = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_N=12\nCONFIG_MODULES=y\n"
	if err := differs("# words\nCONFIG_A=y\nCONFIG_N=12\n# CONFIG_B is not set\n# CONFIG_GONE is not set\n", got); err != nil {
		t.Error(err)
	}
	err := differs("CONFIG_B=y\nCONFIG_N=1\n# CONFIG_MODULES is not set\nCONFIG_A=y\n", got)
	if err == nil || !strings.HasSuffix(err.Error(), ": CONFIG_B=y; CONFIG_N=1; # CONFIG_MODULES is not set") {
		t.Error(err)
	}
}

// TestConfig: no line is said twice.
func TestConfig(t *testing.T) {
	seen := map[string]bool{}
	for line := range strings.Lines(config) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			if seen[name] {
				t.Errorf("%s: twice", name)
			}
			seen[name] = true
		}
	}
}

// TestList: a directory with a kernel is one, without modules; half a one is none.
func TestList(t *testing.T) {
	cache := t.TempDir()
	for _, d := range []string{"kernel-own-6.1-a/boot", "kernel-own-6.2-b/boot"} {
		if err := os.MkdirAll(filepath.Join(cache, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	image := filepath.Join(cache, "kernel-own-6.1-a/boot/vmlinux-6.1.5-dsec")
	if err := os.WriteFile(image, []byte("\x7fELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	list := List(cache)
	if len(list) != 1 || list[0].Version != "6.1.5-dsec" || list[0].Package != "kernel-own-6.1-a" || list[0].Image() != image {
		t.Fatalf("%+v", list)
	}
	r, err := debkernel.Find(&debkernel.Options{Cache: list[0].Dir})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := r.Modules(t.Context(), "virtio_blk"); err != nil || len(m) != 0 {
		t.Errorf("modules %v, %v", m, err)
	}
	if b, err := r.Vmlinux(); err != nil || string(b) != "\x7fELF" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestAlone: one that waits for another build says so, and ends with its context; a build that is over keeps nobody away.
func TestAlone(t *testing.T) {
	o := &Options{Cache: t.TempDir()}
	first, err := alone(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	said := ""
	second := *o
	second.Log = func(f string, _ ...any) { said += f; cancel() } // an interrupt, once it waits
	if _, err := alone(ctx, &second); !errors.Is(err, context.Canceled) || !strings.HasPrefix(said, "another build") {
		t.Errorf("%v, said %q", err, said)
	}
	first.Close()
	third, err := alone(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	third.Close()
}
