package erofs

import (
	"encoding/binary"
	"iter"
	"sort"
)

// A directory's data is a row of blocks. Each begins with its entries (inode number, offset of the name, type)
// and ends with their names; names ascend within and across blocks, "." and ".." among them.

// entries yields all entries of a directory in name order, the two for itself and its parent included.
func entries(dir, parent *Inode) iter.Seq[Dirent] {
	return func(yield func(Dirent) bool) {
		list := dir.Entries
		for _, own := range []Dirent{{".", dir}, {"..", parent}} {
			n := sort.Search(len(list), func(n int) bool { return list[n].Name >= own.Name })
			for _, e := range list[:n] {
				if !yield(e) {
					return
				}
			}
			list = list[n:]
			if !yield(own) {
				return
			}
		}
		for _, e := range list {
			if !yield(e) {
				return
			}
		}
	}
}

// dirSize returns the bytes of a directory's data: whole blocks, and what the last one uses.
func dirSize(dir *Inode) int64 {
	blocks, used := int64(0), 0
	for e := range entries(dir, dir) {
		n := direntSize + len(e.Name)
		if used+n > BlockSize {
			blocks, used = blocks+1, 0
		}
		used += n
	}
	return blocks*BlockSize + int64(used)
}

// appendDir appends a directory's data, of dirSize bytes.
func appendDir(b []byte, dir, parent *Inode) []byte {
	var block []Dirent
	used := 0
	for e := range entries(dir, parent) {
		n := direntSize + len(e.Name)
		if used+n > BlockSize {
			b = append(appendDirBlock(b, block), make([]byte, BlockSize-used)...)
			block, used = block[:0], 0
		}
		block = append(block, e)
		used += n
	}
	return appendDirBlock(b, block)
}

func appendDirBlock(b []byte, block []Dirent) []byte {
	name := len(block) * direntSize
	for _, e := range block {
		b = binary.LittleEndian.AppendUint64(b, e.Inode.nid())
		b = binary.LittleEndian.AppendUint16(b, uint16(name))
		b = append(b, fileType(e.Inode.Mode), 0)
		name += len(e.Name)
	}
	for _, e := range block {
		b = append(b, e.Name...)
	}
	return b
}
