package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/erofs"
)

// AddDir reads the directory at path and all below it, by descriptors: symbolic links are read, never
// followed. It stays on one file system (mount points become empty directories) and leaves sockets out.
// The directory should not change meanwhile: what vanishes is left out, a file that shrinks is an error.
func (b *Builder) AddDir(ctx context.Context, path string) error {
	dir, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("read directory: %w: %w", errInvalid, err)
	}
	defer dir.Close()
	st, err := linux.Stat(dir)
	if err != nil {
		return err
	}
	if st.Mode&erofs.TypeMask != erofs.TypeDir {
		return fmt.Errorf("read directory %s: %w: it is not a directory", path, errInvalid)
	}
	w := &dirWalk{b: b, dev: st.Dev, links: map[uint64]*erofs.Inode{}}
	return w.dir(ctx, dir, st, nil)
}

type dirWalk struct {
	b     *Builder
	dev   uint64
	links map[uint64]*erofs.Inode // files with several names, by inode number
}

// dir adds an open directory as parts, and what it holds.
func (w *dirWalk) dir(ctx context.Context, f *os.File, st linux.FileInfo, parts []string) error {
	i, err := w.inode(f, st, parts)
	if err != nil {
		return err
	}
	if err := w.b.place(parts, i); err != nil {
		return err
	}
	if st.Dev != w.dev {
		return nil
	}
	names, err := w.b.names(ctx, f, parts)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := canceled(ctx); err != nil {
			return err
		}
		if err := w.object(ctx, f, name, append(parts[:len(parts):len(parts)], name)); err != nil {
			return err
		}
	}
	return nil
}

// names reads an open directory, sorted: the order decides where data goes. More than the limits allow are not held.
func (b *Builder) names(ctx context.Context, f *os.File, parts []string) ([]string, error) {
	var names []string
	held := b.meta
	for {
		if err := canceled(ctx); err != nil {
			return nil, err
		}
		some, err := f.Readdirnames(4096)
		if err == io.EOF {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read directory %s: %w", nameOf(parts), diskFull(err))
		}
		for _, name := range some {
			held += int64(len(name))
		}
		names = append(names, some...)
		if err := b.within(b.stats.Entries+b.model.made+int64(len(names)), held); err != nil {
			return nil, fmt.Errorf("read directory %s: %w; leave it out", nameOf(parts), err)
		}
	}
}

func (w *dirWalk) object(ctx context.Context, dir *os.File, name string, parts []string) error {
	f, st, err := linux.OpenObjectAt(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	defer f.Close()
	if len(parts) > maxDepth {
		return fmt.Errorf("read directory: %w: more than %d directories deep", errInvalid, maxDepth)
	}
	if err := w.b.count(name, nil); err != nil {
		return err
	}
	if st.Mode&erofs.TypeMask == erofs.TypeDir {
		return w.dir(ctx, f, st, parts)
	}
	return w.file(ctx, f, st, parts, w.b.place)
}

// file puts what is no directory into place, unless it is nothing that a layer holds.
func (w *dirWalk) file(ctx context.Context, f *os.File, st linux.FileInfo, parts []string, place func([]string, *erofs.Inode) error) error {
	kind := st.Mode & erofs.TypeMask
	if kind == erofs.TypeSocket {
		w.b.stats.SkippedSockets++
		return nil
	}
	if i := w.links[st.Ino]; i != nil && st.Nlink > 1 {
		return place(parts, i)
	}
	i, err := w.inode(f, st, parts)
	if err != nil {
		return err
	}
	switch kind {
	case erofs.TypeSymlink:
		if i.Target, err = linux.ReadLink(f); err != nil {
			return err
		}
	case erofs.TypeChar, erofs.TypeBlock:
		i.Major, i.Minor = st.Major, st.Minor
		if keep, err := w.b.device(i); !keep {
			return err
		}
	case erofs.TypeRegular:
		i.Size = st.Size
		if err := w.b.countBytes(i.Size); err != nil {
			return fmt.Errorf("%s: %w", nameOf(parts), err)
		}
		if i.Extents, err = w.content(ctx, f, i.Size); err != nil {
			return fmt.Errorf("read %s: %w", nameOf(parts), err)
		}
	}
	if st.Nlink > 1 {
		w.links[st.Ino] = i
	}
	return place(parts, i)
}

// nameOf is a name of the tree for messages: whoever made it chose its bytes, and where the tree lies on this machine
// says nothing to the reader.
func nameOf(parts []string) string {
	name := "/" + strings.Join(parts, "/")
	if len(name) > maxShown {
		name = name[:maxShown/2] + "..." + name[len(name)-maxShown/2:]
	}
	return strconv.Quote(name)
}

// maxShown is how much of a name a message shows, bytes.
const maxShown = 300

func (w *dirWalk) content(ctx context.Context, f *os.File, size int64) ([]erofs.Extent, error) {
	e, err := w.b.spool.add(ctx, &sparseReader{f: f, size: size}, size)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("it shrank meanwhile: %w", err)
	}
	return e, err
}

// inode translates what fstat says, and the attributes, of what will be at parts.
func (w *dirWalk) inode(f *os.File, st linux.FileInfo, parts []string) (*erofs.Inode, error) {
	i := &erofs.Inode{Mode: st.Mode, UID: st.UID, GID: st.GID, Mtime: st.Mtime, MtimeNsec: st.MtimeNsec}
	attrs, err := linux.Xattrs(f)
	if errors.Is(err, syscall.E2BIG) {
		return nil, fmt.Errorf("%s: %w: the names of its extended attributes are more than the kernel lists; leave it out", nameOf(parts), errInvalid)
	}
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		w.b.xattrs(i, a.Name, a.Value)
		w.b.meta += int64(len(a.Name) + len(a.Value))
	}
	slices.SortFunc(i.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	if err := erofs.CheckXattrs(i.Xattrs); err != nil {
		return nil, fmt.Errorf("%s: %w; leave it out", nameOf(parts), imageError(err))
	}
	return i, nil
}

// Whence values of lseek that package io does not name.
const (
	seekData = 3
	seekHole = 4
)

// sparseReader reads a file and jumps over its holes without reading them.
type sparseReader struct {
	f    *os.File
	at   int64
	size int64
	data int64 // where the present or next run of data begins
	hole int64 // and ends
	raw  bool  // the file system cannot tell holes
}

func (s *sparseReader) Read(p []byte) (int, error) {
	if s.at >= s.size {
		return 0, io.EOF
	}
	if s.at >= s.hole && !s.raw {
		s.seek()
	}
	if !s.raw && s.at < s.data {
		n := int(min(int64(len(p)), s.data-s.at))
		clear(p[:n])
		s.at += int64(n)
		return n, nil
	}
	if !s.raw {
		p = p[:min(int64(len(p)), s.hole-s.at)]
	}
	n, err := s.f.ReadAt(p, s.at)
	s.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// seek finds the next run of data.
func (s *sparseReader) seek() {
	data, err := s.f.Seek(s.at, seekData)
	if err != nil {
		end, err := s.f.Seek(0, io.SeekEnd)
		if err != nil || end < s.size {
			s.raw = true // let reading tell what is wrong
			return
		}
		if holes, err := s.f.Seek(s.at, seekHole); err != nil || holes > s.at {
			s.raw = true
			return
		}
		s.data, s.hole = s.size, s.size // a hole to the end
		return
	}
	hole, err := s.f.Seek(data, seekHole)
	if err != nil || hole <= data {
		s.raw = true
		return
	}
	s.data, s.hole = data, hole
}
