package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/opendsec/dsec/sandbox"
)

// FileName is the one file of a layer that is a disk.
const FileName = "disk.raw"

// SectorSize divides the size of every disk, bytes.
const SectorSize = 512

// MaxSize bounds a disk as a machine sees it, bytes.
const MaxSize = 256 << 30

// Firmware is what starts a machine from a disk.
type Firmware string

// The firmwares.
const (
	BIOS Firmware = "bios"
	UEFI Firmware = "uefi"
)

// ParseFirmware reads a firmware's name; "" = BIOS. Error: sandbox.ErrInvalid.
func ParseFirmware(s string) (Firmware, error) {
	switch f := Firmware(s); f {
	case "":
		return BIOS, nil
	case BIOS, UEFI:
		return f, nil
	}
	return "", fmt.Errorf("firmware %.40q: %w: want bios or uefi", s, sandbox.ErrInvalid)
}

// Image is a disk image that was found good.
type Image struct {
	Format string // raw or qcow2
	Size   int64  // of the disk, bytes
	file   io.ReaderAt
	qcow   *qcow2
}

// magics begin what is no plain disk; each is refused with what to do.
var magics = []struct {
	at    int64
	magic string
	what  string
}{
	{0, "KDMV", "a VMDK image"}, {0, "COWD", "a VMDK image"}, {0, "# Disk DescriptorFile", "the descriptor of a VMDK image"},
	{0, "vhdxfile", "a VHDX image"}, {0, "conectix", "a VHD image"}, {0, "QED\x00", "a QED image"}, {0x40, "\x7f\x10\xda\xbe", "a VDI image"},
	{0, "\xfd7zXZ\x00", "compressed with xz"}, {0, "BZh", "compressed with bzip2"}, {0, "PK\x03\x04", "a zip archive"},
	{0, "LUKS\xba\xbe", "encrypted (LUKS)"},
}

// Open checks an image of a size in bytes. Errors: sandbox.ErrInvalid for what is damaged, refers to other files or tells
// untruths; sandbox.ErrUnsupported for formats that must be converted first; sandbox.ErrExhausted above MaxSize.
func Open(f io.ReaderAt, size int64) (*Image, error) {
	head := make([]byte, min(size, 4096))
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read disk image: %w", err)
	}
	if len(head) >= 8 && string(head[:4]) == qcowMagic {
		q, err := openQcow2(f, size)
		if err != nil {
			return nil, fmt.Errorf("qcow2 image: %w", err)
		}
		return &Image{Format: "qcow2", Size: q.size, file: f, qcow: q}, nil
	}
	for _, m := range magics {
		if int64(len(head)) > m.at && bytes.HasPrefix(head[m.at:], []byte(m.magic)) {
			return nil, fmt.Errorf("disk image: %w: it is %s: make a raw or qcow2 image of it (qemu-img convert -O qcow2)", sandbox.ErrUnsupported, m.what)
		}
	}
	if size == 0 || size%SectorSize != 0 {
		return nil, fmt.Errorf("disk image: %w: %d bytes are no whole sectors of %d: it is cut off, or no disk image", sandbox.ErrInvalid, size, SectorSize)
	}
	if err := checkSize(uint64(size)); err != nil {
		return nil, fmt.Errorf("disk image: %w", err)
	}
	return &Image{Format: "raw", Size: size, file: f}, nil
}

func checkSize(size uint64) error {
	if size > MaxSize {
		return fmt.Errorf("%w: a disk of %d bytes is larger than %d", sandbox.ErrExhausted, size, int64(MaxSize))
	}
	return nil
}

// Content reads the disk from its beginning: Size bytes. Error: sandbox.ErrInvalid where the image turns out damaged.
func (i *Image) Content() io.Reader {
	if i.qcow != nil {
		return &qcowReader{q: i.qcow}
	}
	return io.NewSectionReader(i.file, 0, i.Size)
}

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
