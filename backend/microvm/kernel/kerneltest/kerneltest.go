// Package kerneltest makes files that look like kernels, for tests of what chooses and refuses them.
package kerneltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/backend/microvm/kernel"
)

// ELF is a file for a machine whose only segment is these bytes: whole, and nothing that runs.
func ELF(machine elf.Machine, segment string) []byte {
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	p := elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 120, Filesz: uint64(len(segment)), Memsz: uint64(len(segment))}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, &h) // values of a fixed size, into memory
	_ = binary.Write(&b, binary.LittleEndian, &p)
	return append(b.Bytes(), segment...)
}

// Put makes a directory below a cache as a build of a version (6.12.117) with a compiler leaves it, of this program's
// configuration, and returns its name.
func Put(cache, version, compiler string) (dir string, err error) {
	in := kernel.Inputs{Package: "linux-source-6.12", Version: version + "-1", Compiler: compiler}
	dir = filepath.Join(cache, in.DirName())
	return dir, errors.Join(os.MkdirAll(filepath.Join(dir, "boot"), 0o755),
		os.WriteFile(filepath.Join(dir, "boot", "vmlinux-"+version+"-dsec"), ELF(elf.EM_X86_64, version), 0o644),
		os.WriteFile(filepath.Join(dir, "source"), []byte(in.String()+"\n"), 0o644))
}
