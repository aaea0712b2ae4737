package pool

import (
	"errors"
	"os"

	"github.com/opendsec/dsec/internal/linux"
)

// Flush writes what the sandbox has written so far to the pool, so that a snapshot soon after finds little left to do.
// Only its own data is written: a throw-away snapshot makes btrfs do just that. name is free for the moment.
func (l *Layer) Flush(name string) error {
	err := l.Snapshot(name)
	return errors.Join(err, l.pool.Delete(name))
}

// Snapshot keeps the layer as it is now, read-only, as name. What both share stays charged to the layer.
func (l *Layer) Snapshot(name string) error {
	dir, err := linux.OpenDirAt(l.pool.root, l.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return linux.SubvolumeSnapshot(l.pool.root, name, dir, true)
}

// OpenSnapshot opens what a snapshot holds, with the ids as they are on disk.
func (p *Pool) OpenSnapshot(name string) (*os.File, error) {
	return linux.OpenDirAt(p.root, name+"/upper")
}

// MountSnapshot returns a detached mount of what a snapshot holds, with the id mapping of a user namespace.
func (p *Pool) MountSnapshot(name string, userns *os.File) (*os.File, error) {
	return p.space.Clone(p.mount, name+"/upper", linux.ReadOnly|linux.NoDev|linux.NoAtime, userns)
}
