package files

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// maxHardLinks bounds the files with several names that are remembered; later ones are packed as copies.
const maxHardLinks = 64 << 10

// Pack writes a tar of the tree at path: of a directory what is in it, named relative to it; of a file the file.
// It stays on one file system, so that what is mounted below is an empty directory. Sockets and devices are left
// out.
func Pack(path string, w io.Writer) error {
	p := &packer{w: w, links: make(map[[2]uint64]string)}
	if err := p.pack(path); err != nil {
		return fail("pack", path, err)
	}
	_, err := w.Write(make([]byte, 2*block))
	return err
}

type packer struct {
	w     io.Writer
	b     []byte
	dev   uint64
	links map[[2]uint64]string
}

func (p *packer) pack(path string) error {
	fd, err := open(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	proc := procfs(fd)
	unix.Close(fd)
	switch {
	case err != nil:
		return err
	case proc:
		return errProc
	case kind(&st) != unix.S_IFDIR:
		f, err := OpenRead(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, base, err := split(path)
		if err != nil {
			base = "file"
		}
		return p.file(f.fd, base)
	}
	if fd, err = open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	p.dev = st.Dev
	if err := p.header(&st, "./", "", typeDir); err != nil {
		return err
	}
	return p.dir(fd, "", 0)
}

func (p *packer) header(st *unix.Stat_t, name, link string, kind byte) error {
	m := member{
		name: name, link: link, kind: kind, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid,
		mtime: st.Mtim.Sec, nsec: st.Mtim.Nsec,
	}
	if kind == typeFile {
		m.size = st.Size
	}
	p.b = m.appendHeader(p.b[:0])
	_, err := p.w.Write(p.b)
	return err
}

func (p *packer) dir(fd int, prefix string, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	return each(fd, func(name string) error {
		err := p.entry(fd, prefix, name, depth)
		if err == unix.ENOENT {
			return nil // it went away meanwhile
		}
		if _, ok := err.(unix.Errno); ok {
			return fail("pack", prefix+name, err)
		}
		return err
	})
}

func (p *packer) entry(dir int, prefix, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	full := prefix + name
	if len(full) >= 2*wire.MaxPath {
		return errDeep
	}
	if st.Nlink > 1 && kind(&st) != unix.S_IFDIR {
		key := [2]uint64{st.Dev, st.Ino}
		if first, ok := p.links[key]; ok {
			return p.header(&st, full, first, typeLink)
		}
		if len(p.links) < maxHardLinks {
			p.links[key] = full
		}
	}
	switch kind(&st) {
	case unix.S_IFLNK:
		target, err := readlink(dir, name)
		if err != nil {
			return err
		}
		return p.header(&st, full, target, typeSymlink)
	case unix.S_IFIFO:
		return p.header(&st, full, "", typeFIFO)
	case unix.S_IFREG:
		fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0, unix.RESOLVE_BENEATH)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return p.file(fd, full)
	case unix.S_IFDIR:
		if err := p.header(&st, full+"/", "", typeDir); err != nil || st.Dev != p.dev {
			return err
		}
		fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
		if err == unix.EXDEV {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return p.dir(fd, full+"/", depth+1)
	}
	return nil
}

// file packs an open regular file. One that shrinks meanwhile is filled up with zeros, one that grows is cut: the
// header has been written.
func (p *packer) file(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if kind(&st) != unix.S_IFREG {
		return nil // replaced meanwhile
	}
	if err := p.header(&st, name, "", typeFile); err != nil {
		return err
	}
	f := File{fd: fd, Info: wire.FileInfo{Path: name}}
	count := counter{w: p.w}
	if err := f.Copy(&count, 0, st.Size); err != nil {
		return err
	}
	for missing := st.Size - count.n + pad(st.Size); missing > 0; {
		n, err := p.w.Write(zeros[:min(missing, block)])
		if err != nil {
			return err
		}
		missing -= int64(n)
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
