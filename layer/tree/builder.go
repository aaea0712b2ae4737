package tree

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opendsec/dsec/layer/erofs"
)

// Builder makes one layer. It is not safe for concurrent use.
type Builder struct {
	opts    Options
	dir     string
	model   *model
	top     *node // where inputs land
	spool   *spool
	file    *os.File
	stats   Stats
	meta    int64 // bytes of names, targets and attributes
	stream  int64 // bytes that archives decompressed to
	closed  bool
	spooled bool // the spool is closed
}

// New begins a layer whose files are made in dir, which must be empty and belong to the caller.
func New(dir string, opts Options) (*Builder, error) {
	opts.Limits = opts.Limits.orDefault()
	b := &Builder{opts: opts, dir: dir, model: newModel(opts.Below)}
	prefix, err := splitName(opts.Prefix)
	if err != nil {
		return nil, fmt.Errorf("prefix %.200q: %w", opts.Prefix, err)
	}
	if b.top, err = b.model.lookup(b.model.root, prefix, true); err != nil {
		return nil, fmt.Errorf("prefix %q: %w", opts.Prefix, err)
	}
	if b.file, err = os.OpenFile(filepath.Join(dir, "data"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	if b.spool, err = newSpool(b.file, opts.MinFree); err != nil {
		b.file.Close()
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return b, nil
}

// NextLayer says that what follows is an upper layer: its whiteouts remove what came before.
func (b *Builder) NextLayer() { b.model.layer++ }

// Stats counts what was read so far.
func (b *Builder) Stats() Stats {
	s := b.stats
	s.SharedBytes = b.spool.shared
	return s
}

// Close ends the builder and its goroutine. The files of a finished layer stay.
func (b *Builder) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if !b.spooled {
		b.spooled = true
		b.spool.close()
	}
	return b.file.Close()
}

// count charges one entry, and what it keeps in memory, to the limits.
func (b *Builder) count(name string, i *erofs.Inode) error {
	b.stats.Entries++
	b.meta += int64(len(name))
	if i != nil {
		b.meta += int64(len(i.Target))
		for _, x := range i.Xattrs {
			b.meta += int64(len(x.Name) + len(x.Value))
		}
	}
	return b.within(b.stats.Entries+b.model.made, b.meta)
}

// within holds entries, and the bytes of names and attributes, against the limits.
func (b *Builder) within(entries, meta int64) error {
	switch l := b.opts.Limits; {
	case entries > l.Entries:
		return fmt.Errorf("input: %w: more than %d entries", errExhausted, l.Entries)
	case meta > l.MetaBytes:
		return fmt.Errorf("input: %w: names and attributes of more than %d MiB", errExhausted, l.MetaBytes>>20)
	}
	return nil
}

// countBytes charges the content of a file before it is read.
func (b *Builder) countBytes(size int64) error {
	if size < 0 || size > erofs.MaxFileSize {
		return fmt.Errorf("%w: a file of %d bytes", errInvalid, size)
	}
	if size > b.opts.Limits.Bytes-b.stats.Bytes {
		return fmt.Errorf("%w: files of more than %d MiB in all, holes included; leave it out", errExhausted, b.opts.Limits.Bytes>>20)
	}
	b.stats.Bytes += size
	return nil
}

// Each calls see for every name that was added and is there now, whiteouts too, sorted within each directory: what several
// layers have at one place is told once.
func (b *Builder) Each(see func(path string, inode *erofs.Inode)) {
	stack := []*node{b.top}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n.own >= 0 {
			see(cmp.Or(n.path(), "/"), n.inode)
		}
		names := slices.Sorted(maps.Keys(n.children))
		for _, name := range slices.Backward(names) {
			stack = append(stack, n.children[name])
		}
	}
}

// place puts an inode at parts below the top directory.
func (b *Builder) place(parts []string, inode *erofs.Inode) error {
	if len(parts) == 0 {
		if !inode.IsDir() {
			return fmt.Errorf("%w: the top of the tree must be a directory", errInvalid)
		}
		b.top.inode, b.top.own = inode, b.model.layer
		b.model.touch(b.top)
		return nil
	}
	parent, err := b.model.lookup(b.top, parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	if parent.depth >= maxDepth {
		return fmt.Errorf("%w: more than %d directories deep", errInvalid, maxDepth)
	}
	b.model.put(parent, parts[len(parts)-1], inode)
	return nil
}

// find returns the inode at parts, links in the last component not followed; nil = there is none.
func (b *Builder) find(parts []string) (*erofs.Inode, error) {
	if len(parts) == 0 {
		return b.top.inode, nil
	}
	parent, err := b.model.lookup(b.top, parts[:len(parts)-1], false)
	if err != nil || parent == nil {
		return nil, err
	}
	if n := parent.children[parts[len(parts)-1]]; n != nil {
		return n.inode, nil
	}
	return nil, nil
}

// xattrs filters and orders attributes: an overlay's own must not steer the overlay that the layer is
// stacked in, so they get the name under which it shows them inside; labels of the host's SELinux mean nothing
// elsewhere, nor does what btrfs keeps as attributes, which anyone sets on their own files (chattr +c).
func (b *Builder) xattrs(i *erofs.Inode, name, value string) {
	switch {
	case name == "security.selinux", strings.HasPrefix(name, "btrfs."):
		return
	case strings.HasPrefix(name, overlayXattr):
		if b.opts.Overlay {
			if name != erofs.OpaqueXattr || value != "y" {
				return // bookkeeping of one mount
			}
			break
		}
		name = overlayXattr + "overlay." + strings.TrimPrefix(name, overlayXattr)
	}
	i.Xattrs = append(i.Xattrs, erofs.Xattr{Name: name, Value: value})
}

const overlayXattr = "trusted.overlay."

// device applies the policy to a device node; keep = false leaves it out.
func (b *Builder) device(i *erofs.Inode) (keep bool, err error) {
	if b.opts.Overlay && i.IsWhiteout() {
		return true, nil
	}
	switch b.opts.Devices {
	case KeepDevices:
		if i.IsWhiteout() {
			break // would hide a name of lower layers, which a device of an input must not
		}
		return true, nil
	case SkipDevices:
		b.stats.SkippedDevices++
		return false, nil
	}
	return false, fmt.Errorf("%w: device nodes (%d:%d) are not allowed", errInvalid, i.Major, i.Minor)
}

func canceled(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
