package microvm

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/microvm/kernel/kerneltest"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/sandbox"
)

// bootKernel makes the boot image of a directory with that kernel.
func bootKernel(t *testing.T, dir, kernel string, content []byte) (*bootImage, error) {
	t.Helper()
	init, image := filepath.Join(t.TempDir(), "init"), filepath.Join(kernel, "boot", "vmlinux-6.12.1")
	if err := errors.Join(os.WriteFile(init, []byte("init"), 0o700), os.MkdirAll(filepath.Dir(image), 0o700), os.WriteFile(image, content, 0o600)); err != nil {
		t.Fatal(err)
	}
	return makeBootImage(t.Context(), dir, debkernel.Built(kernel), init)
}

// TestBootImageKernel: a kernel's directory that has another kernel now, under the same name, is another kernel.
func TestBootImageKernel(t *testing.T) {
	dir, kernel := t.TempDir(), filepath.Join(t.TempDir(), "mine")
	for _, segment := range []string{"one", "another"} {
		content := kerneltest.ELF(elf.EM_X86_64, segment)
		b, err := bootKernel(t, dir, kernel, content)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(b.kernel); err != nil || !bytes.Equal(got, content) {
			t.Errorf("it boots %q, want %q: %v", got, content, err)
		}
	}
}

// TestNoKernel: what QEMU would not take is refused, with the reason.
func TestNoKernel(t *testing.T) {
	whole := kerneltest.ELF(elf.EM_X86_64, strings.Repeat("code", 100))
	for want, content := range map[string][]byte{
		"no whole ELF file": nil, "no whole ELF file: bad magic": bytes.Repeat([]byte("kernel"), 1000),
		"for EM_AARCH64": kerneltest.ELF(elf.EM_AARCH64, "code"), "its end is missing": whole[:len(whole)-1],
	} {
		_, err := bootKernel(t, t.TempDir(), filepath.Join(t.TempDir(), "mine"), content)
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
