package fullvm

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// images keeps the disks that machines of this process started from mounted, each once, so that they share what of it is
// in memory. A machine itself holds a descriptor: closing these takes nothing from it.
type images struct {
	node layer.Node
	mu   sync.Mutex
	m    map[layer.Digest]*image
}

// image is one disk, mounted nowhere.
type image struct {
	digest layer.Digest
	disk   layer.Disk
	mount  *os.File
	refs   int
}

// get mounts a layer that is a disk; put must follow. Errors: sandbox.ErrInvalid when it is none, and layer.Node's.
func (c *images) get(ctx context.Context, ref sandbox.LayerRef) (*image, error) {
	d := layer.Digest(ref.Digest)
	c.mu.Lock()
	defer c.mu.Unlock() // the first machine of an image mounts it, others wait
	if i := c.m[d]; i != nil {
		i.refs++
		return i, nil
	}
	l, err := c.node.Local(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", ref.Name, err)
	}
	what := l.Manifest.Config.Disk
	if what == nil || what.Size <= 0 || what.Size > disk.MaxSize || what.Size%disk.SectorSize != 0 {
		return nil, fmt.Errorf("%s %s: %w: a full VM starts from a disk, and this is none: dsec image import FILE --disk --name NAME", ref.Kind, ref.Name, sandbox.ErrInvalid)
	}
	data := l.DataPath
	if l.Manifest.Data.Size == 0 {
		data = ""
	}
	m, err := linux.NewErofs(l.MetaPath, data, linux.NoAtime|linux.NoExec, l.Readahead)
	if err != nil {
		return nil, fmt.Errorf("mount disk %s: %w", ref.Name, err)
	}
	i := &image{digest: d, disk: *what, mount: m, refs: 1}
	c.m[d] = i
	return i, nil
}

func (c *images) put(i *image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i.refs--; i.refs == 0 {
		delete(c.m, i.digest)
		i.mount.Close()
	}
}

// open opens the disk for reading.
func (i *image) open() (*os.File, error) {
	at, err := linux.OpenAt(i.mount, disk.FileName) // never a link
	if err != nil {
		return nil, err
	}
	defer at.Close()
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(at.Fd())))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != i.disk.Size) {
		err = fmt.Errorf("%w: the layer's disk is not what its manifest says: %d bytes of %d", sandbox.ErrInvalid, st.Size(), i.disk.Size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
