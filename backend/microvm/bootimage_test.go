package microvm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/sandbox"
)

// elfKernel is an ELF file of a machine with one segment.
func elfKernel(t *testing.T, machine elf.Machine, segment string) []byte {
	t.Helper()
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	p := elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 120, Filesz: uint64(len(segment)), Memsz: uint64(len(segment))}
	var b bytes.Buffer
	if err := errors.Join(binary.Write(&b, binary.LittleEndian, &h), binary.Write(&b, binary.LittleEndian, &p)); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), segment...)
}

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
		content := elfKernel(t, elf.EM_X86_64, segment)
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
	whole := elfKernel(t, elf.EM_X86_64, strings.Repeat("code", 100))
	for want, content := range map[string][]byte{
		"no whole ELF file": nil, "no whole ELF file: bad magic": bytes.Repeat([]byte("kernel"), 1000),
		"for EM_AARCH64": elfKernel(t, elf.EM_AARCH64, "code"), "its end is missing": whole[:len(whole)-1],
	} {
		_, err := bootKernel(t, t.TempDir(), filepath.Join(t.TempDir(), "mine"), content)
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
