package ext4

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxNames bounds how many names are made; a file may have several.
const maxNames = 4 << 20

// maxTree bounds how deep directories lie in each other.
const maxTree = 1000

// page is what whatever has content takes at least, here as there, bytes.
const page = 4 << 10

// roomStep is how much room is asked for at once, bytes.
const roomStep = 256 << 20

// Limits of what is made.
type Limits struct {
	// Size is what it may take at most, bytes: the size of the disk, whatever the file system on it says of itself.
	Size int64
	// Has is what there is room for, bytes; before it takes more Room is asked, whose error ends the extraction; nil: there is room.
	Has  int64
	Room func(total int64) error
}

// extraction is one at work.
type extraction struct {
	ctx   context.Context
	fs    *FS
	to    Limits
	taken int64             // bytes of content
	asked int64             // for how many there is room
	names int               // that may still come
	seen  map[uint32]string // where an inode was made first
	kept  map[string]bool   // extended attributes
}

// Extract makes the directory `to`, empty and nobody else's, what the directory `name` of a file system's root is: owners, modes,
// times, links, and the extended attributes named. What is zero becomes a hole. Errors: ErrBroken, that of Limits.Room.
func Extract(ctx context.Context, r io.ReaderAt, l Limits, name, to string, attrs ...string) error {
	f, err := Open(r)
	if err != nil {
		return err
	}
	x := &extraction{ctx: ctx, fs: f, to: l, asked: l.Has, names: maxNames, seen: map[uint32]string{}, kept: map[string]bool{}}
	for _, a := range attrs {
		x.kept[a] = true
	}
	root, err := f.inode(rootInode)
	if err != nil {
		return err
	}
	top, err := f.lookup(root, name)
	if err != nil {
		return err
	}
	if top.mode&kindMask != kindDir {
		return broken("%s is no directory", name)
	}
	return x.dir(top, to, 0)
}

// dir fills a directory that exists.
func (x *extraction) dir(i *inode, to string, depth int) error {
	if _, again := x.seen[i.num]; again || depth > maxTree {
		return broken("directory %d lies in itself, or too deep", i.num)
	}
	x.seen[i.num] = to
	all, err := x.fs.entries(i)
	if err != nil {
		return err
	}
	var names int64
	for _, e := range all {
		names += int64(len(e.name)) + 8
	}
	if err := x.take(max(names, page)); err != nil {
		return err
	}
	for _, e := range all {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		if x.names--; x.names < 0 {
			return broken("it has more than %d names", maxNames)
		}
		child, err := x.fs.inode(e.num)
		if err != nil {
			return err
		}
		path := filepath.Join(to, e.name)
		if len(path) > 4000 {
			return broken("a path of more than 4000 bytes")
		}
		if child.mode&kindMask == kindDir {
			if err := os.Mkdir(path, 0o700); err != nil {
				return named(err)
			}
			if err := x.dir(child, path, depth+1); err != nil {
				return err
			}
			continue
		}
		if err := x.leaf(child, path); err != nil {
			return err
		}
	}
	return x.finish(i, to)
}

// named makes the error of a name that comes twice one of the file system's.
func named(err error) error {
	if errors.Is(err, os.ErrExist) {
		return broken("a name comes twice: %v", err)
	}
	return err
}

// leaf makes what is no directory.
func (x *extraction) leaf(i *inode, path string) error {
	if first, ok := x.seen[i.num]; ok {
		return named(os.Link(first, path))
	}
	switch i.mode & kindMask {
	case kindFile:
		if err := x.file(i, path); err != nil {
			return err
		}
	case kindLink:
		to, err := x.fs.link(i)
		if err != nil {
			return err
		}
		if len(to) >= len(i.data) { // else its inode holds it
			if err := x.take(page); err != nil {
				return err
			}
		}
		if err := os.Symlink(to, path); err != nil {
			return named(err)
		}
		x.seen[i.num] = path
		return os.Lchown(path, int(i.uid), int(i.gid))
	case kindFIFO:
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			return named(err)
		}
	case kindChar:
		if i.data != [60]byte{} {
			return nil // a device that is none of the sandbox's
		}
		x.seen[i.num] = path
		return named(syscall.Mknod(path, syscall.S_IFCHR, 0)) // a whiteout
	default:
		return nil
	}
	x.seen[i.num] = path
	return x.finish(i, path)
}

func (x *extraction) file(i *inode, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return named(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(i.size); err != nil {
		return err
	}
	return x.fs.read(i, func(at int64, b []byte) error {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		return data(b, func(from, to int) error {
			if err := x.take((int64(to-from) + page - 1) / page * page); err != nil {
				return err
			}
			_, err := f.WriteAt(b[from:to], at+int64(from))
			return err
		})
	})
}

// take counts what is going to be written. A guest may give many files the same blocks, which here take room for each.
func (x *extraction) take(n int64) error {
	if x.taken += n; x.taken > x.to.Size {
		return broken("its files have more bytes than it has")
	}
	if x.taken <= x.asked || x.to.Room == nil {
		return nil
	}
	x.asked = min(x.taken+roomStep, x.to.Size)
	return x.to.Room(x.asked)
}

// zeros is a page of nothing.
var zeros [page]byte

// data calls f with the runs of pages that are not zero.
func data(b []byte, f func(from, to int) error) error {
	for from := 0; from < len(b); {
		to := from
		for to < len(b) && !bytes.Equal(b[to:min(to+page, len(b))], zeros[:min(page, len(b)-to)]) {
			to = min(to+page, len(b))
		}
		if to == from {
			from = min(from+page, len(b))
			continue
		}
		if err := f(from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// smallAttr is the size of an extended attribute that has room in an inode, bytes.
const smallAttr = 64

// finish sets what a file or directory has beside its content.
func (x *extraction) finish(i *inode, path string) error {
	attrs, err := x.fs.attrs(i)
	if err != nil {
		return err
	}
	if err := os.Lchown(path, int(i.uid), int(i.gid)); err != nil {
		return err
	}
	if err := syscall.Chmod(path, uint32(i.mode&0o7777)); err != nil {
		return err
	}
	for _, a := range attrs {
		if !x.kept[a.name] {
			continue
		}
		if len(a.value) > smallAttr {
			if err := x.take(page); err != nil {
				return err
			}
		}
		if err := syscall.Setxattr(path, a.name, a.value, 0); err != nil {
			return fmt.Errorf("set %s: %w", a.name, err)
		}
	}
	at := time.Unix(i.mtime, i.nsec)
	return os.Chtimes(path, at, at)
}
