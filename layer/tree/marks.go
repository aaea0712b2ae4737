package tree

import (
	"maps"
	"slices"
	"strings"

	"github.com/opendsec/dsec/layer/erofs"
)

// settleMarks removes whiteouts that hide nothing, because their directory or one above it is opaque, and marks the
// directories that hold others.
func (m *model) settleMarks() {
	type step struct {
		n      *node
		sealed bool // nothing of lower layers is seen here
	}
	for stack := []step{{m.root, false}}; len(stack) > 0; {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		sealed := s.sealed || s.n.inode.Opaque()
		if sealed {
			maps.DeleteFunc(s.n.children, func(_ string, c *node) bool { return c.inode.IsWhiteout() })
		}
		holds := false
		for _, c := range s.n.children {
			if c.inode.IsDir() {
				stack = append(stack, step{c, sealed})
			}
			holds = holds || c.inode.IsWhiteout()
		}
		if holds && !slices.ContainsFunc(s.n.inode.Xattrs, func(x erofs.Xattr) bool { return x.Name == erofs.OriginXattr }) {
			setXattr(s.n.inode, erofs.OriginXattr, "")
		}
	}
}

// setXattr adds an attribute in its place; there must be none of the name.
func setXattr(i *erofs.Inode, name, value string) {
	at, _ := slices.BinarySearchFunc(i.Xattrs, name, func(x erofs.Xattr, name string) int { return strings.Compare(x.Name, name) })
	i.Xattrs = slices.Insert(i.Xattrs, at, erofs.Xattr{Name: name, Value: value})
}
