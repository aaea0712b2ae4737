package erofs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// split finds the number of an attribute's prefix and the rest of its name.
func splitXattr(name string) (index uint8, rest string, err error) {
	for _, p := range xattrPrefixes {
		if rest, ok := strings.CutPrefix(name, p.prefix); ok && (rest == "") == p.exact {
			if len(rest) > MaxNameLen || strings.IndexByte(rest, 0) >= 0 {
				break
			}
			return p.index, rest, nil
		}
	}
	return 0, "", fmt.Errorf("%w: extended attribute %.80q has a name that the image cannot hold", ErrInvalid, name)
}

// CheckXattrs tells whether an image can hold these attributes on one inode. Errors: ErrInvalid, ErrTooLarge.
func CheckXattrs(attrs []Xattr) error {
	_, err := xattrSize(attrs)
	return err
}

// xattrSize returns the bytes of the attributes' body, 0 for none.
func xattrSize(attrs []Xattr) (int, error) {
	if len(attrs) == 0 {
		return 0, nil
	}
	n := xattrHeaderSize
	seen := make(map[string]bool, len(attrs))
	for _, a := range attrs {
		_, rest, err := splitXattr(a.Name)
		if err != nil {
			return 0, err
		}
		if len(a.Value) > MaxXattrValue {
			return 0, fmt.Errorf("%w: extended attribute %s has %d bytes", ErrTooLarge, a.Name, len(a.Value))
		}
		if seen[a.Name] {
			return 0, fmt.Errorf("%w: extended attribute %s occurs twice", ErrInvalid, a.Name)
		}
		seen[a.Name] = true
		n += (xattrEntrySize + len(rest) + len(a.Value) + 3) &^ 3
	}
	if (n-xattrHeaderSize)/4+1 > 1<<16-1 {
		return 0, fmt.Errorf("%w: extended attributes of %d bytes in all", ErrTooLarge, n)
	}
	return n, nil
}

// xattrCount is the inode's field that says how long the body is.
func xattrCount(size int) uint16 {
	if size == 0 {
		return 0
	}
	return uint16((size-xattrHeaderSize)/4 + 1)
}

// appendXattrs appends the body, attributes sorted by name.
func appendXattrs(b []byte, attrs []Xattr) []byte {
	if len(attrs) == 0 {
		return b
	}
	sorted := slices.Clone(attrs)
	slices.SortFunc(sorted, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	b = append(b, make([]byte, xattrHeaderSize)...) // no shared attributes, no filter
	for _, a := range sorted {
		index, rest, _ := splitXattr(a.Name) // checked by xattrSize
		b = append(b, byte(len(rest)), index)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(a.Value)))
		b = append(b, rest...)
		b = append(b, a.Value...)
		for pad := -(xattrEntrySize + len(rest) + len(a.Value)) & 3; pad > 0; pad-- {
			b = append(b, 0)
		}
	}
	return b
}
