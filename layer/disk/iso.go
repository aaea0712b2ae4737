package disk

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// File is one file of an image.
type File struct {
	Name    string // up to 30 letters, digits, dots and dashes
	Content []byte
}

// Of ISO 9660, bytes and sectors. An image is: 16 sectors of nothing, two descriptors, the two tables of directories, the one
// directory, the files.
const (
	isoSector    = 2048
	isoPrimary   = 16
	isoEnd       = 17
	isoTableLSB  = 18
	isoTableMSB  = 19
	isoRoot      = 20
	isoFiles     = 21
	isoMaxFiles  = 16
	isoMaxSize   = 64 << 20 // of all files
	isoTableSize = 10       // one entry: the root
)

// WriteISO writes a file system of ISO 9660 with files in its root, whose names are kept as they are, in lower case too, as
// systems show them. label is up to 32 characters. Error: sandbox.ErrInvalid.
func WriteISO(w io.Writer, label string, files []File) error {
	if len(label) > 32 || len(files) > isoMaxFiles {
		return fmt.Errorf("file system of %d files: %w: want at most %d, and a label of 32 characters", len(files), sandbox.ErrInvalid, isoMaxFiles)
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	root := append(isoEntry("\x00", isoRoot, isoSector, true), isoEntry("\x01", isoRoot, isoSector, true)...)
	at, total := uint32(isoFiles), 0
	for _, f := range files {
		if f.Name == "" || len(f.Name) > 30 || strings.ContainsAny(f.Name, "/;\x00") {
			return fmt.Errorf("file %.40q: %w: no name for this file system", f.Name, sandbox.ErrInvalid)
		}
		if total += len(f.Content); total > isoMaxSize {
			return fmt.Errorf("file system: %w: more than %d bytes", sandbox.ErrInvalid, isoMaxSize)
		}
		root = append(root, isoEntry(f.Name+";1", at, uint32(len(f.Content)), false)...)
		at += sectors(len(f.Content))
	}
	out := make([]byte, isoFiles*isoSector, int(at)*isoSector)
	copy(out[isoPrimary*isoSector:], isoDescriptor(label, at))
	copy(out[isoEnd*isoSector:], "\xffCD001\x01")
	copy(out[isoTableLSB*isoSector:], isoTable(binary.LittleEndian))
	copy(out[isoTableMSB*isoSector:], isoTable(binary.BigEndian))
	copy(out[isoRoot*isoSector:], root) // 16 entries of up to 66 bytes fit
	for _, f := range files {
		out = append(out, f.Content...)
		out = append(out, make([]byte, int(sectors(len(f.Content)))*isoSector-len(f.Content))...)
	}
	_, err := w.Write(out)
	return err
}

func sectors(size int) uint32 { return uint32((size + isoSector - 1) / isoSector) }

// both appends a number as this format has most: in both orders of bytes.
func both16(b []byte, v uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, v), v)
}

func both32(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, v), v)
}

// isoEntry is a directory's record of a file. All times are the first of 2000.
func isoEntry(name string, at, size uint32, dir bool) []byte {
	b := []byte{0, 0}
	b = both32(b, at)
	b = both32(b, size)
	b = append(b, 100, 1, 1, 0, 0, 0, 0)
	flags := byte(0)
	if dir {
		flags = 2
	}
	b = append(b, flags, 0, 0)
	b = both16(b, 1)
	b = append(b, byte(len(name)))
	b = append(b, name...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	b[0] = byte(len(b))
	return b
}

// isoTable is the table of directories: the root.
func isoTable(order binary.AppendByteOrder) []byte {
	b := order.AppendUint32([]byte{1, 0}, isoRoot)
	return append(order.AppendUint16(b, 1), 0, 0)
}

func isoDescriptor(label string, size uint32) []byte {
	text := func(b []byte, s string, n int) []byte { return append(b, s+strings.Repeat(" ", n-len(s))...) }
	b := []byte("\x01CD001\x01\x00")
	b = text(b, "", 32)
	b = text(b, label, 32)
	b = append(b, make([]byte, 8)...)
	b = both32(b, size)
	b = append(b, make([]byte, 32)...)
	b = both16(b, 1) // volumes, and which
	b = both16(b, 1)
	b = both16(b, isoSector)
	b = both32(b, isoTableSize)
	b = binary.LittleEndian.AppendUint32(b, isoTableLSB)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, isoTableMSB)
	b = append(b, 0, 0, 0, 0)
	b = append(b, isoEntry("\x00", isoRoot, isoSector, true)...)
	b = text(b, "", 128*4+37*3) // who made it, and of what
	for range 2 {
		b = append(b, "2000010100000000\x00"...)
	}
	for range 2 { // never over, of use at once
		b = append(b, "0000000000000000\x00"...)
	}
	return append(b, 1)
}
