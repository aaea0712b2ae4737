package tree

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/union"
)

// node is one name of the tree. Several names may share an inode.
type node struct {
	name     string
	parent   *node
	inode    *erofs.Inode
	children map[string]*node // directories only, made when needed
	layer    int32            // the last input layer that added something at or below this name
	own      int32            // the last input layer that had an entry of this very name; -1 = none
	depth    int32            // of the root: 0
	clean    int32            // the last input layer, counted from 1, that has swept all of lower layers from below this directory
	under    *union.Node      // what the layers below have at this place, where they are known
}

// model is the tree under construction.
type model struct {
	root  *node
	layer int32
	// made counts the directories that no entry described.
	made int64
	// swept counts the names that were looked at for opaque directories.
	swept int64
	// dropped is set once contents may have become unreachable.
	dropped bool
}

const (
	maxSymlinks = 40
	maxPathLen  = 32 << 10
	maxDepth    = 4096
)

func newModel(below *union.Tree) *model {
	m := &model{}
	m.root = &node{inode: implicitDir(nil, ""), own: -1}
	if below != nil {
		m.root.under, m.root.inode = below.Root, properties(below.Root.Inode)
		m.root.inode.Xattrs = slices.DeleteFunc(m.root.inode.Xattrs, func(x erofs.Xattr) bool { return x.Name == erofs.OpaqueXattr })
	}
	m.root.parent = m.root
	return m
}

// implicitDir is a directory that no entry describes. The modes of the few directories that everyone expects
// to be different matter: in a stack, the topmost layer decides them.
func implicitDir(parent *node, name string) *erofs.Inode {
	mode := uint32(0o755)
	if parent != nil {
		switch parent.path() + "/" + name {
		case "/tmp", "/var/tmp":
			mode = 0o1777
		case "/root":
			mode = 0o700
		}
	}
	return &erofs.Inode{Mode: erofs.TypeDir | mode}
}

// path returns the node's absolute path, "" for the root.
func (n *node) path() string {
	var parts []string
	for ; n.parent != n; n = n.parent {
		parts = append(parts, n.name)
	}
	var b strings.Builder
	for i := len(parts) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(parts[i])
	}
	return b.String()
}

// beneath tells whether n is dir or lies below it.
func (n *node) beneath(dir *node) bool {
	for ; n != dir; n = n.parent {
		if n.parent == n {
			return false
		}
	}
	return true
}

// splitName cuts the name of an entry into components; none = the top directory itself.
func splitName(name string) ([]string, error) {
	if len(name) > maxPathLen {
		return nil, fmt.Errorf("%w: its name has %d bytes, at most %d are allowed", errInvalid, len(name), maxPathLen)
	}
	var parts []string
	for p := range strings.SplitSeq(name, "/") {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return nil, fmt.Errorf("%w: its name contains \"..\"", errInvalid)
		case len(p) > erofs.MaxNameLen || strings.IndexByte(p, 0) >= 0:
			return nil, fmt.Errorf("%w: a component of its name has %d bytes, at most %d are allowed, and no NUL", errInvalid, len(p), erofs.MaxNameLen)
		default:
			parts = append(parts, p)
		}
	}
	if len(parts) > maxDepth {
		return nil, fmt.Errorf("%w: more than %d directories deep", errInvalid, maxDepth)
	}
	return parts, nil
}

// lookup walks parts from dir, through symbolic links, to a directory that lies at or below dir. With create,
// missing directories are made; else a missing one gives nil.
func (m *model) lookup(dir *node, parts []string, create bool) (*node, error) {
	at, links := dir, 0
	rest := parts
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." { // from a link only
			at = at.parent
			continue
		}
		next := at.children[name]
		if u := at.below(name); next == nil && u != nil && !u.Inode.IsDir() {
			if u.Inode.Mode&erofs.TypeMask != erofs.TypeSymlink {
				return nil, fmt.Errorf("%w: %.200q is not a directory", errInvalid, at.path()+"/"+name)
			}
			next = &node{name: name, parent: at, inode: u.Inode} // followed, and not of this layer
		}
		if next == nil {
			if !create {
				return nil, nil
			}
			if len(name) > erofs.MaxNameLen {
				return nil, fmt.Errorf("%w: leads through a symbolic link with a name of %d bytes", errInvalid, len(name))
			}
			if at.depth >= maxDepth {
				return nil, fmt.Errorf("%w: more than %d directories deep", errInvalid, maxDepth)
			}
			next = m.attach(at, name)
			next.inode, next.own = implicitDir(at, name), -1
			if next.under != nil { // it goes on as it is
				next.inode = properties(next.under.Inode)
				next.inode.Xattrs = slices.DeleteFunc(next.inode.Xattrs, func(x erofs.Xattr) bool { return x.Name == erofs.OpaqueXattr })
			}
			m.made++
		}
		switch next.inode.Mode & erofs.TypeMask {
		case erofs.TypeDir:
			at = next
		case erofs.TypeSymlink:
			if links++; links > maxSymlinks {
				return nil, fmt.Errorf("%w: too many symbolic links on the way", errInvalid)
			}
			target := next.inode.Target
			if strings.HasPrefix(target, "/") {
				at = m.root
			}
			rest = append(strings.Split(target, "/"), rest...)
		default:
			return nil, fmt.Errorf("%w: %.200q is not a directory", errInvalid, next.path())
		}
	}
	if links > 0 && !at.beneath(dir) {
		return nil, fmt.Errorf("%w: leads through a symbolic link out of %s", errInvalid, dir.path())
	}
	return at, nil
}

// below returns what the layers below have in a directory.
func (n *node) below(name string) *union.Node {
	if n.under == nil {
		return nil
	}
	return n.under.Children[name]
}

func (m *model) attach(parent *node, name string) *node {
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	child := &node{name: name, parent: parent, layer: m.layer, depth: parent.depth + 1, under: parent.below(name)}
	parent.children[name] = child
	return child
}

// put gives the object at parent/name a new inode. What was there goes, but a directory keeps its children
// when a directory takes its place.
func (m *model) put(parent *node, name string, inode *erofs.Inode) {
	old := parent.children[name]
	switch {
	case old == nil:
		old = m.attach(parent, name)
	case old.inode == inode: // a hard link to itself
	case !(old.inode.IsDir() && inode.IsDir()):
		m.dropped = true
		old.children = nil
	}
	old.inode = inode
	old.own = m.layer
	m.touch(old)
}

// touch marks n and its parents as part of the present layer.
func (m *model) touch(n *node) {
	for n.layer = m.layer; n.parent != n; n.layer = m.layer {
		n = n.parent
	}
}

// whiteout removes what lower layers have at parent/name.
func (m *model) whiteout(parent *node, name string) {
	n := parent.children[name]
	if n == nil {
		return
	}
	m.dropped = true
	if n.layer < m.layer {
		delete(parent.children, name)
		return
	}
	if n.inode.IsDir() {
		m.opaque(n)
		if n.own < m.layer { // the present layer only has something below it
			n.inode = implicitDir(parent, name)
		}
	}
}

// opaque removes all that lower layers have below dir. What came afterwards is of the present layer, so that once is enough:
// each directory is looked through once in a layer, however many that are opaque lie in each other.
func (m *model) opaque(dir *node) {
	if dir.clean == m.layer+1 {
		return
	}
	dir.clean = m.layer + 1
	for name := range dir.children {
		m.swept++
		m.whiteout(dir, name)
	}
}
