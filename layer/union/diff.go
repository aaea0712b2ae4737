package union

import (
	"context"
	"iter"
	"maps"
	"path"
	"slices"

	"github.com/opendsec/dsec/layer/erofs"
)

// Change is one name in which two trees differ.
type Change struct {
	Path string
	Kind string // "added", "removed" or "changed"
	// What differs of a changed one: type, mode, owner, size, time, target, device, attributes, content, links.
	What []string
	Old  *erofs.Inode // nil when added
	New  *erofs.Inode // nil when removed
}

// Same compares the contents of two regular files of one size; nil believes size and time.
type Same func(ctx context.Context, old, new *Node) (bool, error)

// Diff yields what differs between two trees, in the order of paths, until the caller stops. Everything below an added or
// removed directory is yielded as well. A directory's time is not compared, because whatever makes the directory sets it.
func Diff(ctx context.Context, old, new *Tree, same Same) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		d := &differ{ctx: ctx, same: same, yield: yield}
		d.pair("/", old.Root, new.Root)
	}
}

type differ struct {
	ctx   context.Context
	same  Same
	yield func(Change, error) bool
}

// pair compares what two trees have at one path, and all below it; false = stop.
func (d *differ) pair(at string, old, new *Node) bool {
	if d.ctx.Err() != nil {
		d.yield(Change{}, context.Cause(d.ctx))
		return false
	}
	c := Change{Path: at}
	switch {
	case old == nil:
		c.Kind, c.New = "added", new.Inode
	case new == nil:
		c.Kind, c.Old = "removed", old.Inode
	default:
		what, err := d.what(old, new)
		if err != nil {
			d.yield(Change{}, err)
			return false
		}
		if len(what) > 0 {
			c.Kind, c.What, c.Old, c.New = "changed", what, old.Inode, new.Inode
		}
	}
	if c.Kind != "" && !d.yield(c, nil) {
		return false
	}
	names := map[string]bool{}
	for _, n := range []*Node{old, new} {
		if n != nil {
			for name := range n.Children {
				names[name] = true
			}
		}
	}
	child := func(n *Node, name string) *Node {
		if n == nil {
			return nil
		}
		return n.Children[name]
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !d.pair(path.Join(at, name), child(old, name), child(new, name)) {
			return false
		}
	}
	return true
}

func (d *differ) what(old, new *Node) ([]string, error) {
	a, b := old.Inode, new.Inode
	if a == b {
		return nil, nil
	}
	var out []string
	note := func(what string, differs bool) {
		if differs {
			out = append(out, what)
		}
	}
	kind := a.Mode & erofs.TypeMask
	note("type", kind != b.Mode&erofs.TypeMask)
	note("mode", a.Mode&^erofs.TypeMask != b.Mode&^erofs.TypeMask)
	note("owner", a.UID != b.UID || a.GID != b.GID)
	note("attributes", !slices.Equal(visible(a), visible(b)))
	if kind != b.Mode&erofs.TypeMask {
		return out, nil
	}
	note("time", kind != erofs.TypeDir && (a.Mtime != b.Mtime || a.MtimeNsec != b.MtimeNsec))
	note("target", a.Target != b.Target)
	note("device", a.Major != b.Major || a.Minor != b.Minor)
	note("size", a.Size != b.Size)
	if kind == erofs.TypeRegular && a.Size == b.Size && a.Size > 0 && d.same != nil {
		same, err := d.same(d.ctx, old, new)
		if err != nil {
			return nil, err
		}
		note("content", !same)
	}
	return out, nil
}

// visible are the attributes that the tree shows: not the marks for the overlay.
func visible(i *erofs.Inode) []erofs.Xattr {
	return slices.DeleteFunc(slices.Clone(i.Xattrs), func(x erofs.Xattr) bool {
		return x.Name == erofs.OpaqueXattr || x.Name == erofs.OriginXattr
	})
}
