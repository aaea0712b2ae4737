package debkernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// maxKernel bounds an uncompressed kernel, bytes.
const maxKernel = 256 << 20

// Vmlinux returns the kernel as the ELF file that lies compressed in its image: started by the PVH entry of it, a
// machine boots 10 to 20 % sooner. Only zstd is known, as Debian compresses with since 12.
func (r *Release) Vmlinux() ([]byte, error) {
	b, err := os.ReadFile(r.Image())
	if err != nil || r.Own {
		return b, err
	}
	// The image's head: Documentation/arch/x86/boot.rst of the kernel.
	if len(b) < 0x250 || string(b[0x202:0x206]) != "HdrS" {
		return nil, fmt.Errorf("%s: not a kernel image", r.Image())
	}
	setup := int(b[0x1f1])
	if setup == 0 {
		setup = 4
	}
	at := (setup+1)*512 + int(binary.LittleEndian.Uint32(b[0x248:]))
	end := at + int(binary.LittleEndian.Uint32(b[0x24c:]))
	if at < 0 || end > len(b) || end-at < 8 || !bytes.Equal(b[at:at+4], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil, fmt.Errorf("%s: not compressed with zstd", r.Image())
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxKernel), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	// The last four bytes are the size.
	out, err := d.DecodeAll(b[at:end-4], nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Image(), err)
	}
	if !bytes.HasPrefix(out, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s: holds no ELF file", r.Image())
	}
	return out, nil
}

// Bootable tells what an ELF file of size bytes is not that QEMU's machines take as a kernel: QEMU itself would end, with a word
// that few see.
func Bootable(kernel io.ReaderAt, size int64) error {
	f, err := elf.NewFile(kernel)
	if err != nil {
		return fmt.Errorf("it is no whole ELF file: %w", err)
	}
	if f.Machine != elf.EM_X86_64 || f.Class != elf.ELFCLASS64 {
		return fmt.Errorf("it is for %v, not for x86-64", f.Machine)
	}
	for _, p := range f.Progs {
		if uint64(size) < p.Off || uint64(size)-p.Off < p.Filesz {
			return errors.New("its end is missing")
		}
	}
	return nil
}
