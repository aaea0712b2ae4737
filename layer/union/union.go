package union

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opendsec/dsec/layer/erofs"
)

// Node is one name of the tree that a stack shows.
type Node struct {
	Inode    *erofs.Inode
	Layer    int              // whose it is, counted from the bottom
	Children map[string]*Node // of a directory
}

// Tree is what a stack shows.
type Tree struct {
	Root   *Node
	Hidden []Hidden // in the order of the upper layers, and then of paths
}

// Hidden is a name of a lower layer that an upper one hides. What lies below a hidden directory is counted, not listed.
type Hidden struct {
	Path  string
	By    int    // the upper layer, counted from the bottom
	Of    int    // the lower layer
	Names int64  // names that are hidden, those below it included
	How   string // "replaced", "removed" (a whiteout) or "emptied" (an opaque directory)
}

// Show lays layers over one another, bottom to top, as overlayfs does. The inodes are those of the input.
func Show(ctx context.Context, layers []*erofs.Inode) (*Tree, error) {
	t := &Tree{Root: &Node{Inode: &erofs.Inode{Mode: erofs.TypeDir | 0o755}, Layer: -1}}
	for n, l := range layers {
		if err := t.add(ctx, n, l); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tree) add(ctx context.Context, layer int, root *erofs.Inode) error {
	type step struct {
		to   *Node
		dir  *erofs.Inode
		path string
	}
	if root.Opaque() {
		t.hide(t.Root, "/", layer, "emptied")
		t.Root.Children = nil
	}
	t.Root.Inode, t.Root.Layer = root, layer
	for stack := []step{{t.Root, root, "/"}}; len(stack) > 0; {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.to.Children == nil {
			s.to.Children = make(map[string]*Node, len(s.dir.Entries))
		}
		for _, e := range s.dir.Entries {
			at := path.Join(s.path, e.Name)
			old := s.to.Children[e.Name]
			switch {
			case e.Inode.IsWhiteout():
				if old != nil {
					t.hide(old, at, layer, "removed")
					delete(s.to.Children, e.Name)
				}
				continue
			case old != nil && old.Inode.IsDir() && e.Inode.IsDir():
				if e.Inode.Opaque() {
					t.hide(old, at, layer, "emptied")
					old.Children = nil
				}
				old.Inode, old.Layer = e.Inode, layer
			default:
				if old != nil {
					t.hide(old, at, layer, "replaced")
				}
				s.to.Children[e.Name] = &Node{Inode: e.Inode, Layer: layer}
			}
			if e.Inode.IsDir() {
				stack = append(stack, step{s.to.Children[e.Name], e.Inode, at})
			}
		}
	}
	return nil
}

// hide notes what is hidden at and below n, one entry for each layer that it is of.
func (t *Tree) hide(n *Node, at string, by int, how string) {
	count := map[int]int64{}
	for stack := []*Node{n}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		count[n.Layer]++
		for _, c := range n.Children {
			stack = append(stack, c)
		}
	}
	if how == "emptied" { // the directory itself goes on
		if count[n.Layer]--; count[n.Layer] == 0 {
			delete(count, n.Layer)
		}
	}
	for _, of := range slices.Sorted(maps.Keys(count)) {
		t.Hidden = append(t.Hidden, Hidden{Path: at, By: by, Of: of, Names: count[of], How: how})
	}
}

// maxLinks bounds the symbolic links on the way to one name.
const maxLinks = 40

// Lookup finds a name, symbolic links on the way and at its end followed within the tree; nil = there is none.
func (t *Tree) Lookup(name string) *Node {
	at := []*Node{t.Root}
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := at[len(at)-1].Children[part]
		if next == nil {
			return nil
		}
		if next.Inode.Mode&erofs.TypeMask != erofs.TypeSymlink {
			at = append(at, next)
			continue
		}
		if links++; links > maxLinks {
			return nil
		}
		if strings.HasPrefix(next.Inode.Target, "/") {
			at = at[:1]
		}
		rest = append(strings.Split(next.Inode.Target, "/"), rest...)
	}
	return at[len(at)-1]
}
