package tree

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opendsec/dsec/layer/erofs"
)

// Source is a layer that is given to AddLayers.
type Source struct {
	Root *erofs.Inode // as erofs.Read returns it; it is not changed
	Data io.ReaderAt  // its blob; nil when it has none
}

// AddLayers merges consecutive layers of a stack, bottom to top, into what is made here: over any other layers, and under
// any, the result shows the tree that they show. Whiteouts and opaque marks are kept for what lies below. It must be the
// only input, and ends at the root. Errors: as those of AddTar; a layer that is damaged gives its reader's.
func (b *Builder) AddLayers(ctx context.Context, layers []Source) error {
	from := map[*erofs.Inode]origin{} // new inodes of files, and where their content is
	for n, l := range layers {
		if n > 0 {
			b.NextLayer()
		}
		m := &merger{b: b, data: l.Data, from: from, made: map[*erofs.Inode]*erofs.Inode{}}
		if err := m.merge(ctx, l.Root); err != nil {
			return fmt.Errorf("layer %d of %d: %w", n+1, len(layers), err)
		}
	}
	b.model.dropped = false // contents come now: there is none that nothing refers to
	return b.copyContents(ctx, from)
}

// origin is where the content of a file lies.
type origin struct {
	extents []erofs.Extent
	data    io.ReaderAt
}

// merger lays one layer over the model.
type merger struct {
	b    *Builder
	data io.ReaderAt
	from map[*erofs.Inode]origin
	made map[*erofs.Inode]*erofs.Inode // by inode of the layer: files with several names stay one
}

func (m *merger) merge(ctx context.Context, root *erofs.Inode) error {
	type step struct {
		to  *node
		dir *erofs.Inode
	}
	top := m.b.model.root
	over := root.Opaque()
	if over {
		top.children = nil
	}
	top.inode, top.own = m.dir(root, over || top.inode.Opaque()), m.b.model.layer
	for stack := []step{{top, root}}; len(stack) > 0; {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if err := canceled(ctx); err != nil {
			return err
		}
		for _, e := range s.dir.Entries {
			if err := m.b.count(e.Name, e.Inode); err != nil {
				return err
			}
			old := s.to.children[e.Name]
			if !e.Inode.IsDir() {
				i, err := m.file(e.Inode)
				if err != nil {
					return fmt.Errorf("%s/%s: %w", s.to.path(), e.Name, err)
				}
				m.b.model.put(s.to, e.Name, i)
				continue
			}
			opaque := e.Inode.Opaque()
			if old != nil {
				if opaque {
					old.children = nil
				}
				// What is no directory ends the search below it, as a mark does.
				opaque = opaque || !old.inode.IsDir() || old.inode.Opaque()
			}
			m.b.model.put(s.to, e.Name, m.dir(e.Inode, opaque))
			stack = append(stack, step{s.to.children[e.Name], e.Inode})
		}
	}
	return nil
}

// dir copies a directory's own properties.
func (m *merger) dir(i *erofs.Inode, opaque bool) *erofs.Inode {
	n := properties(i)
	if opaque && !i.Opaque() {
		setXattr(n, erofs.OpaqueXattr, "y")
	}
	return n
}

// file copies what is no directory, without its content.
func (m *merger) file(i *erofs.Inode) (*erofs.Inode, error) {
	if n := m.made[i]; n != nil {
		return n, nil
	}
	n := properties(i)
	n.Size, n.Major, n.Minor, n.Target = i.Size, i.Major, i.Minor, i.Target
	m.made[i] = n
	if !i.IsRegular() {
		return n, nil
	}
	if err := m.b.countBytes(i.Size); err != nil {
		return nil, err
	}
	if len(i.Extents) > 0 && m.data == nil {
		return nil, fmt.Errorf("%w: its layer has no data", errInvalid)
	}
	m.from[n] = origin{i.Extents, m.data}
	return n, nil
}

func properties(i *erofs.Inode) *erofs.Inode {
	n := &erofs.Inode{Mode: i.Mode, UID: i.UID, GID: i.GID, Mtime: i.Mtime, MtimeNsec: i.MtimeNsec, Xattrs: slices.Clone(i.Xattrs)}
	n.Xattrs = slices.DeleteFunc(n.Xattrs, func(x erofs.Xattr) bool { return x.Name == erofs.OriginXattr }) // put back where it belongs
	return n
}

// copyContents brings in the contents of the files that are left, in the order of their names.
func (b *Builder) copyContents(ctx context.Context, from map[*erofs.Inode]origin) error {
	for stack := []*node{b.model.root}; len(stack) > 0; {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		names := slices.Sorted(maps.Keys(dir.children))
		for _, name := range names {
			n := dir.children[name]
			o, ok := from[n.inode]
			if !ok {
				continue
			}
			delete(from, n.inode) // another name of it has the content too
			var err error
			if n.inode.Extents, err = b.spool.add(ctx, &extentReader{o: o, size: n.inode.Size}, n.inode.Size); err != nil {
				return fmt.Errorf("copy %.200s: %w", n.path(), err)
			}
		}
		for _, name := range slices.Backward(names) {
			if n := dir.children[name]; n.inode.IsDir() {
				stack = append(stack, n)
			}
		}
	}
	return nil
}

// extentReader reads a file of a layer from its beginning; holes read as zeros.
type extentReader struct {
	o    origin
	size int64
	at   int64
}

func (r *extentReader) Read(p []byte) (int, error) {
	if r.at >= r.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.size-r.at)]
	for len(r.o.extents) > 0 && r.o.extents[0].Offset+r.o.extents[0].Length <= r.at {
		r.o.extents = r.o.extents[1:]
	}
	if len(r.o.extents) == 0 || r.o.extents[0].Offset > r.at {
		if len(r.o.extents) > 0 {
			p = p[:min(int64(len(p)), r.o.extents[0].Offset-r.at)]
		}
		clear(p)
		r.at += int64(len(p))
		return len(p), nil
	}
	e := r.o.extents[0]
	p = p[:min(int64(len(p)), e.Offset+e.Length-r.at)]
	n, err := r.o.data.ReadAt(p, e.Blob+r.at-e.Offset)
	r.at += int64(n)
	if n > 0 {
		return n, nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

// NewFileReader reads the content of a regular file of a layer whose blob is data.
func NewFileReader(i *erofs.Inode, data io.ReaderAt) io.Reader {
	return &extentReader{o: origin{i.Extents, data}, size: i.Size}
}
