package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/erofs"
)

// Upper is a directory that an overlay wrote to, and what of it is wanted.
type Upper struct {
	Path string
	// Since is an earlier state of the same directory, on the same file system, that the new layer is to lie on: what is
	// as it was there stays out, and what is gone since is removed. Empty = everything.
	Since string
	// Want decides about a name ("/etc/passwd"); nil = all. Directories that lead to what is wanted are always in it.
	// What lies below a directory is asked for one by one, unless Prune says that none of it is wanted.
	Want  func(path string) bool
	Prune func(path string) bool
	// See hears of everything that goes in, whiteouts too, when it does; Builder.Each tells what is there in the end.
	See func(path string, inode *erofs.Inode)
}

// AddUpper adds what an overlay has written. Whiteouts and opaque directories keep their meaning: towards layers below
// the one that is being made, and towards what was added to it before. The builder must have been made with Overlay.
// Errors are as of AddDir.
func (b *Builder) AddUpper(ctx context.Context, u Upper) error {
	w := &upperWalk{dirWalk: dirWalk{b: b, links: map[uint64]*erofs.Inode{}}, u: u}
	open := func(path string) (*os.File, linux.FileInfo, error) {
		f, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return nil, linux.FileInfo{}, fmt.Errorf("read directory: %w", err)
		}
		st, err := linux.Stat(f)
		if err == nil && st.Mode&erofs.TypeMask != erofs.TypeDir {
			err = fmt.Errorf("read directory %s: %w: it is not a directory", path, errInvalid)
		}
		if err != nil {
			f.Close()
		}
		return f, st, err
	}
	now, st, err := open(u.Path)
	if err != nil {
		return err
	}
	defer now.Close()
	w.dev = st.Dev
	var since *os.File
	if u.Since != "" {
		if since, _, err = open(u.Since); err != nil {
			return err
		}
		defer since.Close()
	}
	// The root always exists below; it matters only if it changed.
	root := &upperDir{f: now, st: st, since: since}
	_, err = w.walk(ctx, root)
	return err
}

// upperDir is a directory on the way; it goes in when something below it does.
type upperDir struct {
	up    *upperDir
	f     *os.File
	st    linux.FileInfo
	since *os.File // what was here, if it was this very directory
	parts []string
	in    bool
}

func (d *upperDir) path() string { return "/" + strings.Join(d.parts, "/") }

func (d *upperDir) child(name string) []string {
	return append(d.parts[:len(d.parts):len(d.parts)], name)
}

type upperWalk struct {
	dirWalk
	u Upper
}

// enter puts a directory in, and those above it first.
func (w *upperWalk) enter(d *upperDir) error {
	if d.in {
		return nil
	}
	d.in = true
	if d.up != nil {
		if err := w.enter(d.up); err != nil {
			return err
		}
	}
	i, err := w.inode(d.f, d.st, d.parts)
	if err != nil {
		return err
	}
	if d.since != nil { // it lies over itself: what it hid is hidden
		i.Xattrs = slices.DeleteFunc(i.Xattrs, isOpaque)
	}
	return w.put(d.parts, i)
}

func isOpaque(x erofs.Xattr) bool { return x.Name == erofs.OpaqueXattr }

// put puts an inode in. Over what was added before, it must hide what an overlay of both would hide.
func (w *upperWalk) put(parts []string, i *erofs.Inode) error {
	if len(parts) > 0 {
		old, err := w.b.node(parts)
		if err != nil {
			return err
		}
		switch {
		case old == nil, !i.IsDir():
		case slices.ContainsFunc(i.Xattrs, isOpaque):
			if old.inode.IsDir() {
				w.b.model.dropped = true
				old.children = nil
			}
		case old.inode.IsDir() && slices.ContainsFunc(old.inode.Xattrs, isOpaque), !old.inode.IsDir():
			i.Xattrs = append(i.Xattrs, erofs.Xattr{Name: erofs.OpaqueXattr, Value: "y"})
			slices.SortFunc(i.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	if err := w.b.place(parts, i); err != nil {
		return err
	}
	if w.u.See != nil {
		w.u.See("/"+strings.Join(parts, "/"), i)
	}
	return nil
}

// walk adds what a directory holds, and tells whether anything went in.
func (w *upperWalk) walk(ctx context.Context, d *upperDir) (bool, error) {
	names, err := w.b.names(ctx, d.f, d.parts)
	if err != nil {
		return false, err
	}
	any := false
	for _, name := range names {
		if err := canceled(ctx); err != nil {
			return any, err
		}
		in, err := w.object(ctx, d, name)
		if err != nil {
			return any, err
		}
		any = any || in
	}
	if d.since == nil {
		return any, nil
	}
	was, err := w.b.names(ctx, d.since, d.parts)
	if err != nil {
		return any, err
	}
	for _, name := range was {
		if _, there := slices.BinarySearch(names, name); there || !w.wanted(d, name) {
			continue
		}
		any = true
		if err := w.enter(d); err != nil {
			return any, err
		}
		if err := w.b.count(name, nil); err != nil {
			return any, err
		}
		if err := w.put(d.child(name), &erofs.Inode{Mode: erofs.TypeChar}); err != nil {
			return any, err
		}
	}
	return any, nil
}

func (w *upperWalk) wanted(d *upperDir, name string) bool {
	return w.u.Want == nil || w.u.Want(strings.TrimSuffix(d.path(), "/")+"/"+name)
}

// object adds what a name stands for, and tells whether anything went in.
func (w *upperWalk) object(ctx context.Context, d *upperDir, name string) (bool, error) {
	f, st, err := linux.OpenObjectAt(d.f, name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read directory: %w", err)
	}
	defer f.Close()
	if len(d.parts) >= maxDepth {
		return false, fmt.Errorf("read directory: %w: more than %d directories deep", errInvalid, maxDepth)
	}
	var before *os.File
	var was linux.FileInfo
	if d.since != nil {
		before, was, err = linux.OpenObjectAt(d.since, name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("read directory: %w", err)
		}
		if before != nil {
			defer before.Close()
		}
	}
	same := before != nil && was.Ino == st.Ino && was.Mode&erofs.TypeMask == st.Mode&erofs.TypeMask
	wanted := w.wanted(d, name)
	if st.Mode&erofs.TypeMask == erofs.TypeDir {
		return w.subdir(ctx, d, name, f, st, before, was, same, wanted)
	}
	if !wanted || same && unchanged(st, was) || before != nil && isWhiteout(st) && isWhiteout(was) {
		return false, nil
	}
	if err := w.enter(d); err != nil {
		return false, err
	}
	if err := w.b.count(name, nil); err != nil {
		return false, err
	}
	placed := false
	err = w.file(ctx, f, st, d.child(name), func(parts []string, i *erofs.Inode) error {
		placed = true
		return w.put(parts, i)
	})
	return placed, err
}

// unchanged tells whether a file is as it was: everything that changes content or attributes changes the ctime.
func unchanged(a, b linux.FileInfo) bool {
	return a.Ctime == b.Ctime && a.CtimeNsec == b.CtimeNsec && a.Size == b.Size && a.Mtime == b.Mtime && a.MtimeNsec == b.MtimeNsec &&
		a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Nlink == b.Nlink
}

// isWhiteout tells whether it removes a name. Overlayfs makes all of them links to one inode, which thus changes.
func isWhiteout(st linux.FileInfo) bool {
	return st.Mode&erofs.TypeMask == erofs.TypeChar && st.Major == 0 && st.Minor == 0
}

// sameAttributes tells whether a directory itself is as it was; its times change with its content.
func sameAttributes(a, b linux.FileInfo) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Ctime == b.Ctime && a.CtimeNsec == b.CtimeNsec
}

func (w *upperWalk) subdir(ctx context.Context, d *upperDir, name string, f *os.File, st linux.FileInfo, before *os.File, was linux.FileInfo, same, wanted bool) (bool, error) {
	sub := &upperDir{up: d, f: f, st: st, parts: d.child(name)}
	if same {
		sub.since = before
	}
	if w.u.Prune != nil && !wanted && w.u.Prune(sub.path()) {
		return false, nil
	}
	if err := w.b.count(name, nil); err != nil {
		return false, err
	}
	if st.Dev != w.dev {
		return false, nil
	}
	in := false
	if wanted && !(same && sameAttributes(st, was)) {
		if err := w.enterOver(sub, before, was); err != nil {
			return false, err
		}
		in = true
	}
	below, err := w.walk(ctx, sub)
	return in || below, err
}

// enterOver puts a directory in that has taken the place of another one, whose content must not show through.
func (w *upperWalk) enterOver(sub *upperDir, before *os.File, was linux.FileInfo) error {
	if err := w.enter(sub); err != nil {
		return err
	}
	if before == nil || sub.since != nil || was.Mode&erofs.TypeMask != erofs.TypeDir {
		return nil
	}
	n, err := w.b.node(sub.parts)
	if err != nil || n == nil || slices.ContainsFunc(n.inode.Xattrs, isOpaque) {
		return err
	}
	n.inode.Xattrs = append(n.inode.Xattrs, erofs.Xattr{Name: erofs.OpaqueXattr, Value: "y"})
	slices.SortFunc(n.inode.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// node returns the node at parts; nil = there is none.
func (b *Builder) node(parts []string) (*node, error) {
	parent, err := b.model.lookup(b.top, parts[:len(parts)-1], false)
	if err != nil || parent == nil {
		return nil, err
	}
	return parent.children[parts[len(parts)-1]], nil
}
