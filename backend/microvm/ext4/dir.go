package ext4

import (
	"encoding/binary"
	"strings"
)

// Kinds of files, of their mode's upper bits.
const (
	kindMask = 0xf000
	kindFIFO = 0x1000
	kindChar = 0x2000
	kindDir  = 0x4000
	kindFile = 0x8000
	kindLink = 0xa000
)

// entry is a name in a directory.
type entry struct {
	name string
	num  uint32
}

// entries lists a directory, without "." and "..". Names are of one part each.
func (f *FS) entries(i *inode) ([]entry, error) {
	b, err := f.bytes(i, maxDir)
	if err != nil {
		return nil, err
	}
	var out []entry
	le := binary.LittleEndian
	for at := 0; at+8 <= len(b); {
		num, size, name := le.Uint32(b[at:]), int(le.Uint16(b[at+4:])), int(b[at+6])
		if size == 0 || size == 65535 { // so blocks of 64 KiB say it
			size = 65536
		}
		if size < 8 || size%4 != 0 || at+size > len(b) || at/int(f.block) != (at+size-1)/int(f.block) || name > size-8 {
			return nil, broken("directory %d makes no sense at %d", i.num, at)
		}
		s := string(b[at+8 : at+8+name])
		at += size
		if num == 0 || s == "." || s == ".." {
			continue
		}
		if s == "" || strings.ContainsAny(s, "/\x00") {
			return nil, broken("directory %d has a name that is none", i.num)
		}
		out = append(out, entry{s, num})
	}
	return out, nil
}

// lookup finds a name in a directory.
func (f *FS) lookup(dir *inode, name string) (*inode, error) {
	all, err := f.entries(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.name == name {
			return f.inode(e.num)
		}
	}
	return nil, broken("there is no %s in it", name)
}

// link reads a symbolic link.
func (f *FS) link(i *inode) (string, error) {
	var b []byte
	if i.size < int64(len(i.data)) && i.flags&flagExtents == 0 {
		b = i.data[:i.size]
	} else {
		var err error
		if b, err = f.bytes(i, 4096); err != nil {
			return "", err
		}
	}
	if s := string(b); s != "" && !strings.Contains(s, "\x00") {
		return s, nil
	}
	return "", broken("link %d leads nowhere", i.num)
}

const attrMagic = 0xea020000

// attrPrefixes are what names of extended attributes begin with, by their kind.
var attrPrefixes = map[byte]string{1: "user.", 4: "trusted.", 6: "security."}

// attr is an extended attribute.
type attr struct {
	name  string
	value []byte
}

// attrs lists extended attributes of the kinds above.
func (f *FS) attrs(i *inode) ([]attr, error) {
	le := binary.LittleEndian
	var out []attr
	if len(i.extra) >= 4 && le.Uint32(i.extra) == attrMagic {
		if err := f.attrsIn(i, i.extra[4:], i.extra[4:], &out); err != nil {
			return nil, err
		}
	}
	if i.acl == 0 {
		return out, nil
	}
	if i.acl >= f.blocks {
		return nil, broken("attributes of inode %d lie outside", i.num)
	}
	b := make([]byte, f.block)
	if _, err := f.r.ReadAt(b, int64(i.acl)*f.block); err != nil || le.Uint32(b) != attrMagic {
		return nil, broken("attributes of inode %d make no sense", i.num)
	}
	err := f.attrsIn(i, b[32:], b, &out)
	return out, err
}

func (f *FS) attrsIn(i *inode, list, values []byte, out *[]attr) error {
	le := binary.LittleEndian
	for len(list) >= 4 && le.Uint32(list) != 0 {
		if len(list) < 16 {
			return broken("attributes of inode %d make no sense", i.num)
		}
		size := int(list[0])
		from, n := int(le.Uint16(list[2:])), le.Uint32(list[8:])
		if 16+size > len(list) || le.Uint32(list[4:]) != 0 || n > uint32(len(values)) || from+int(n) > len(values) {
			return broken("attributes of inode %d make no sense", i.num)
		}
		if prefix := attrPrefixes[list[1]]; prefix != "" {
			*out = append(*out, attr{prefix + string(list[16:16+size]), values[from : from+int(n)]})
		}
		list = list[min(len(list), (16+size+3)&^3):]
	}
	return nil
}
