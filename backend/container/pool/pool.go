package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Config says where the pool lies.
type Config struct {
	Image string // file to keep it in; made when missing
	Size  int64  // bytes of a new file; 0 = a quarter of what is free, between 4 and 256 GiB
	Hold  *hold.Client
	// Mounts is where the pool's mount is cloned.
	Mounts *linux.MountSpace
}

// MinSize is the smallest pool that btrfs takes and that is of use.
const MinSize = 256 << 20

// heldName is the pool's mount in the holder.
const heldName = "pool"

// Pool is an open pool.
type Pool struct {
	mount  *os.File // names the mount; not open for reading
	root   *os.File // its root directory, open
	uuid   string
	simple bool
	held   *hold.Client
	space  *linux.MountSpace
}

// Open makes the pool if there is none, and mounts it. Errors: sandbox.ErrExhausted when the disk has no room,
// sandbox.ErrUnsupported without btrfs.
func Open(ctx context.Context, cfg Config) (*Pool, error) {
	m, err := cfg.Hold.Get(heldName)
	if errors.Is(err, sandbox.ErrNotFound) {
		m, err = mount(ctx, cfg)
		if err == nil {
			if err = errors.Join(cfg.Mounts.Keep(heldName, m), cfg.Hold.Put(heldName, m)); err != nil {
				m.Close()
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("writable-layer pool: %w", err)
	}
	p := &Pool{mount: m, held: cfg.Hold, space: cfg.Mounts}
	if p.root, err = linux.OpenDirAt(m, "."); err == nil {
		if p.simple, err = linux.QuotaEnable(p.root); err == nil {
			p.uuid, err = linux.BtrfsUUID(p.root)
		}
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("writable-layer pool: %w", err)
	}
	return p, nil
}

func mount(ctx context.Context, cfg Config) (*os.File, error) {
	if _, err := os.Stat(cfg.Image); errors.Is(err, os.ErrNotExist) {
		if err := format(ctx, cfg); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	dev, err := linux.LoopAttach(cfg.Image)
	if err != nil {
		return nil, err
	}
	defer dev.Close() // the mount keeps it
	return linux.NewMount("btrfs", linux.NoDev|linux.NoAtime,
		linux.Option{Key: "source", Value: dev.Name()}, linux.Option{Key: "nodiscard", Flag: true},
		linux.Option{Key: "commit", Value: "5"}) // usage is accounted at commits: at most 5 s old
}

// format makes the file system in a temporary file and renames it: a crash leaves no half-made pool.
func format(ctx context.Context, cfg Config) error {
	mkfs, err := exec.LookPath("mkfs.btrfs")
	if err != nil {
		return fmt.Errorf("%w: mkfs.btrfs is missing: install btrfs-progs", sandbox.ErrUnsupported)
	}
	dir, err := os.Open(filepath.Dir(cfg.Image))
	if err != nil {
		return err
	}
	defer dir.Close()
	_, free, err := linux.FsUsage(dir)
	if err != nil {
		return err
	}
	size := cfg.Size
	if size == 0 {
		size = min(max(free/4, 4<<30), 256<<30)
	}
	if size < MinSize {
		return fmt.Errorf("%w: a pool of %d bytes: at least %d", sandbox.ErrInvalid, size, MinSize)
	}
	if size > free-free/20 {
		return fmt.Errorf("%w: a pool of %d MiB in %s, where %d MiB are free: free some space or set a smaller pool size",
			sandbox.ErrExhausted, size>>20, dir.Name(), free>>20)
	}
	tmp := cfg.Image + ".new"
	_ = os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = linux.Allocate(f, size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, mkfs, "-q", "-K", "-L", "dsec-pool", "-m", "single", tmp)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("mkfs.btrfs: %w: %s", err, strings.TrimSpace(out.String()))
		}
	}
	if err == nil {
		err = os.Rename(tmp, cfg.Image)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// Close closes this process's descriptors; the holder keeps the mount.
func (p *Pool) Close() {
	if p.root != nil {
		p.root.Close()
	}
	p.mount.Close()
}

// Unmount lets the holder's copy go as well: the loop device goes away with the last sandbox.
func (p *Pool) Unmount() error {
	err := errors.Join(p.held.Drop(heldName), p.space.Drop(heldName))
	p.Close()
	return err
}

// Usage returns the pool's size and free bytes.
func (p *Pool) Usage() (size, free int64, err error) { return linux.FsUsage(p.root) }

// List returns the names of all subvolumes.
func (p *Pool) List() ([]string, error) {
	d, err := linux.OpenDirAt(p.mount, ".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// Delete deletes a sandbox's subvolume; a missing one is no error.
func (p *Pool) Delete(name string) error {
	err := linux.SubvolumeDelete(p.root, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
