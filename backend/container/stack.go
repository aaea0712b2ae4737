package container

import (
	"container/list"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// maxMounted bounds the layers that stay mounted without being looked up; sandboxes keep what they use
// mounted by themselves.
const maxMounted = 2048

// mounted is one layer, mounted once for the node.
type mounted struct {
	digest layer.Digest
	mount  *os.File
	etc    etcInfo
	refs   int // lookups in progress: not to be closed meanwhile
	gone   bool
	elem   *list.Element
	inode  uint64 // of what it was mounted from; 0 = the node has none
}

// inodes is a Node whose layers lie in files that may be replaced: where they were damaged.
type inodes interface {
	Inode(d layer.Digest) uint64
}

// inode names the file of a layer as it is now.
func (c *mounts) inode(d layer.Digest) uint64 {
	if n, ok := c.node.(inodes); ok {
		return n.Inode(d)
	}
	return 0
}

// etcInfo tells what a layer has at /etc: the shell's writable layer brings an /etc of its own (hosts,
// hostname, resolv.conf), which must look like the one that it covers.
type etcInfo struct {
	present        bool
	mode, uid, gid uint32
}

// mounts keeps the node's mounted layers, least recently used first out.
type mounts struct {
	node  layer.Node
	hold  *hold.Client
	space *linux.MountSpace
	// held names what the holder had when this process began; nil = unknown, ask about each.
	held map[string]bool

	mu   sync.Mutex
	m    map[layer.Digest]*mounted
	lru  *list.List // front = most recent
	busy map[layer.Digest]chan struct{}
	// closed says that the holder and the space are not ours any more.
	closed bool
}

func newMounts(n layer.Node, h *hold.Client, s *linux.MountSpace) *mounts {
	c := &mounts{node: n, hold: h, space: s, m: map[layer.Digest]*mounted{}, lru: list.New(), busy: map[layer.Digest]chan struct{}{}}
	if names, err := h.List(holdName("")); err == nil {
		c.held = make(map[string]bool, len(names))
		for _, name := range names {
			c.held[name] = true
		}
	}
	return c
}

// get returns the layer's mount; concurrent first uses share one mount. The caller calls put.
func (c *mounts) get(ctx context.Context, d layer.Digest) (*mounted, error) {
	now := c.inode(d)
	for {
		c.mu.Lock()
		m := c.m[d]
		if m != nil && now != 0 && m.inode != now { // sandboxes that have it keep what they have
			c.drop(m)
			m = nil
		}
		if m != nil {
			m.refs++
			c.lru.MoveToFront(m.elem)
			c.mu.Unlock()
			return m, nil
		}
		wait := c.busy[d]
		if wait == nil {
			break
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := make(chan struct{})
	c.busy[d] = done
	c.mu.Unlock()

	now = c.inode(d)
	m, err := c.mount(ctx, d)
	if err == nil {
		m.inode = now
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, d)
	close(done)
	if err != nil {
		return nil, err
	}
	m.refs = 1
	m.elem = c.lru.PushFront(m)
	c.m[d] = m
	for c.lru.Len() > maxMounted {
		c.drop(c.lru.Back().Value.(*mounted))
	}
	return m, nil
}

func (c *mounts) put(m *mounted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.refs--; m.refs == 0 && m.gone {
		c.unmount(m)
	}
}

// drop forgets a mount; c.mu is held.
func (c *mounts) drop(m *mounted) {
	c.lru.Remove(m.elem)
	delete(c.m, m.digest)
	m.gone = true
	if m.refs == 0 {
		c.unmount(m)
	}
}

// unmount ends a mount that is neither known nor used; c.mu is held.
func (c *mounts) unmount(m *mounted) {
	m.mount.Close()
	if c.m[m.digest] == nil && c.busy[m.digest] == nil { // else it is in use again, and the names are that one's
		_ = c.hold.Drop(holdName(m.digest))
		_ = c.space.Drop(string(m.digest))
	}
}

func (c *mounts) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.m {
		m.mount.Close()
	}
	c.m = map[layer.Digest]*mounted{}
	c.closed = true
	c.lru.Init()
}

func holdName(d layer.Digest) string { return "layer/" + string(d) }

// mount takes the layer's mount from the holder, or makes it and puts it there.
func (c *mounts) mount(ctx context.Context, d layer.Digest) (*mounted, error) {
	name := holdName(d)
	f, err := (*os.File)(nil), error(sandbox.ErrNotFound)
	if c.held == nil || c.held[name] {
		f, err = c.hold.Get(name)
	}
	if err != nil {
		l, err := c.node.Local(ctx, d)
		if err != nil {
			return nil, err
		}
		if l.Manifest.Config.Disk != nil {
			return nil, fmt.Errorf("%w: it is the disk of a full VM, which no container can be made of: --backend fullvm", sandbox.ErrInvalid)
		}
		data := l.DataPath
		if l.Manifest.Data.Size == 0 {
			data = ""
		}
		f, err = linux.NewErofs(l.MetaPath, data, linux.NoAtime, l.Readahead)
		if err != nil {
			return nil, fmt.Errorf("mount layer %s: %w", d, err)
		}
		if err := c.space.Keep(string(d), f); err != nil {
			f.Close()
			return nil, fmt.Errorf("mount layer %s: %w", d, err)
		}
		// Not fatal: the layer would be mounted twice after a restart of the edge.
		_ = c.hold.Put(name, f)
	}
	m := &mounted{digest: d, mount: f}
	if mode, uid, gid, err := linux.StatAt(f, "etc"); err == nil {
		m.etc = etcInfo{true, mode, uid, gid}
	}
	return m, nil
}

// compose makes the sandbox's root: an overlay of the layers, seen through the shell's ids, and its writable
// layer. It returns a detached mount.
func (d *Driver) compose(ctx context.Context, sh *shell, spec *sandbox.Spec) (*os.File, error) {
	refs := spec.Layers
	o := &linux.Overlay{Writable: sh.own, Upper: sh.upper, Work: sh.work}
	var etc etcInfo
	snaps, err := d.lowerSnapshots(sh, spec.Snapshots, &etc)
	defer closeAll(snaps) // the overlay keeps them
	if err != nil {
		return nil, err
	}
	o.Lower = append(o.Lower, snaps...)
	for i := len(refs) - 1; i >= 0; i-- { // overlayfs wants the top first
		m, err := d.mounts.get(ctx, layer.Digest(refs[i].Digest))
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", strings.TrimSpace(refs[i].Name+" "+refs[i].Digest), err)
		}
		c, err := d.space.Clone(m.mount, "", 0, sh.userns)
		if !etc.present {
			etc = m.etc
		}
		d.mounts.put(m)
		if err != nil {
			return nil, err
		}
		defer c.Close() // the overlay keeps it
		o.Lower = append(o.Lower, c)
	}
	if err := sh.fitEtc(etc); err != nil {
		return nil, err
	}
	if n := len(spec.Snapshots); n > 0 {
		if err := d.inheritHosts(sh, spec.Snapshots[n-1]); err != nil {
			return nil, err
		}
	}
	o.Options = []linux.Option{
		{Key: "redirect_dir", Value: "off"},
		{Key: "metacopy", Value: "off"},
		{Key: "index", Value: "off"},
		{Key: "xino", Value: "off"},
		// A sandbox does not outlive the machine's crash: fsync inside has nothing to protect. What is packed
		// is synced by the pool.
		{Key: "volatile", Flag: true},
	}
	root, err := d.space.NewOverlay(o, linux.NoDev|linux.NoAtime, base(sh.slot))
	if err != nil {
		return nil, poolError(fmt.Errorf("compose root: %w", err))
	}
	return root, nil
}
