package microvm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/internal/debkernel"
)

// TestBootImageKernel: a kernel's directory that has another kernel now, under the same name, is another kernel.
func TestBootImageKernel(t *testing.T) {
	dir, init := t.TempDir(), filepath.Join(t.TempDir(), "init")
	kernel := filepath.Join(t.TempDir(), "mine")
	image := filepath.Join(kernel, "boot", "vmlinux-6.12.1")
	if err := errors.Join(os.WriteFile(init, []byte("init"), 0o700), os.MkdirAll(filepath.Dir(image), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"one", "another"} {
		if err := os.WriteFile(image, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := makeBootImage(t.Context(), dir, debkernel.Built(kernel), init)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(b.kernel); err != nil || string(got) != content {
			t.Errorf("it boots %q, want %q: %v", got, content, err)
		}
	}
}
