package pool

import (
	"fmt"
	"os"

	"github.com/opendsec/dsec/internal/linux"
)

// Layer is the writable layer of one sandbox.
type Layer struct {
	pool *Pool
	Name string
	ID   uint64 // of the subvolume: its quota group is 0/ID
}

// Make makes a subvolume with upper and work in it.
func (p *Pool) Make(name string) (*Layer, error) {
	if err := linux.SubvolumeCreate(p.root, name); err != nil {
		return nil, err
	}
	dir, err := linux.OpenDirAt(p.root, name)
	if err == nil {
		defer dir.Close()
		l := &Layer{pool: p, Name: name}
		if l.ID, err = linux.SubvolumeID(dir); err == nil {
			if err = linux.MkdirAt(dir, "upper", 0o755); err == nil {
				if err = linux.MkdirAt(dir, "work", 0o755); err == nil {
					return l, nil
				}
			}
		}
	}
	_ = p.Delete(name)
	return nil, fmt.Errorf("writable layer: %w", err)
}

// Find names the writable layer that an earlier process made.
func (p *Pool) Find(name string) (*Layer, error) {
	dir, err := linux.OpenDirAt(p.root, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l := &Layer{pool: p, Name: name}
	l.ID, err = linux.SubvolumeID(dir)
	return l, err
}

// Limit sets how many bytes it may hold.
func (l *Layer) Limit(bytes int64) error { return linux.QuotaLimit(l.pool.root, l.ID, bytes) }

// Usage returns the bytes it holds, as last accounted: writes of the last 5 s may be missing.
func (l *Layer) Usage() (int64, error) { return linux.QuotaUsage(l.pool.uuid, l.ID) }

// Mount returns a detached mount of the subvolume with the id mapping of a user namespace.
func (l *Layer) Mount(userns *os.File) (*os.File, error) {
	return l.pool.space.Clone(l.pool.mount, l.Name, linux.NoDev|linux.NoAtime, userns)
}

// Open opens its upper directory with the ids as they are on disk.
func (l *Layer) Open() (*os.File, error) { return linux.OpenDirAt(l.pool.root, l.Name+"/upper") }

// LimitBytes returns the limit; 0 = none.
func (l *Layer) LimitBytes() (int64, error) { return linux.QuotaMax(l.pool.uuid, l.ID) }

// probeSize is how much room a layer that is not full has.
const probeSize = 128 << 10

// Full tells whether the layer has no room left, exactly: by asking for some beside its upper directory. own: it holds
// what its limit allows; shared: the pool has no room for anybody.
func (l *Layer) Full() (own, shared bool, err error) {
	dir, err := linux.OpenDirAt(l.pool.root, l.Name)
	if err != nil {
		return false, false, err
	}
	defer dir.Close()
	if own, shared, err = linux.ProbeRoom(dir, probeSize); err != nil {
		err = fmt.Errorf("probe writable layer %s: %w", l.Name, err)
	}
	return own, shared, err
}
