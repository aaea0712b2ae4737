package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

var _ sandbox.Snapshotter = (*Driver)(nil)

// snapshotFreeze bounds how long a sandbox may take to stop for a snapshot. One that takes longer has a process that
// waits for something outside of it, and goes on unharmed.
const snapshotFreeze = 5 * time.Second

// flushSuffix marks the throw-away snapshots by which data is written ahead; no id ends so.
const flushSuffix = "-flush"

// Snapshot keeps the writable layer of a container as it is at one moment.
func (d *Driver) Snapshot(ctx context.Context, inst sandbox.Instance, id sandbox.SnapshotID, frozen bool) (cost sandbox.SnapshotCost, err error) {
	i, ok := inst.(*instance)
	if !ok {
		return cost, fmt.Errorf("snapshot: %w: not a container", sandbox.ErrInvalid)
	}
	if err := d.admit(); err != nil {
		return cost, err
	}
	start := time.Now()
	if err := i.layer.Flush(string(id) + flushSuffix); err != nil {
		return cost, d.snapshotError(i.id, err)
	}
	cost.Flush = time.Since(start)
	if err := failpoint.Hit("container/snapshot_flushed"); err != nil {
		return cost, err
	}
	if !frozen {
		start = time.Now()
		defer func() {
			terr := i.groups.Thaw()
			cost.Frozen = time.Since(start)
			if terr != nil {
				err = errors.Join(err, fmt.Errorf("thaw %s after a snapshot: %w", i.id, terr))
			}
		}()
		if err := i.groups.Freeze(); err != nil {
			return cost, fmt.Errorf("freeze %s for a snapshot: %w", i.id, err)
		}
		if err := i.groups.WaitFrozen(snapshotFreeze); err != nil {
			return cost, fmt.Errorf("freeze %s for a snapshot: %w", i.id, err)
		}
		cost.Freeze = time.Since(start)
	}
	if err := failpoint.Hit("container/snapshot_frozen"); err != nil {
		return cost, err
	}
	taking := time.Now()
	if err := i.layer.Snapshot(string(id)); err != nil {
		return cost, d.snapshotError(i.id, err)
	}
	cost.Take = time.Since(taking)
	return cost, failpoint.Hit("container/snapshot_taken")
}

func (d *Driver) snapshotError(id sandbox.ID, err error) error {
	return poolError(fmt.Errorf("snapshot of %s: %w", id, err))
}

// poolError tells an error of the pool's file system that has no room as what it is.
func poolError(err error) error {
	if linux.NoRoom(err) {
		return fmt.Errorf("%w: the writable-layer pool is full: delete snapshots, stop sandboxes or enlarge it: %w", sandbox.ErrExhausted, err)
	}
	return err
}

// OpenSnapshot opens what a sandbox had written.
func (d *Driver) OpenSnapshot(id sandbox.SnapshotID) (*os.File, error) {
	f, err := d.pool.OpenSnapshot(string(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("snapshot %s: %w", id, sandbox.ErrNotFound)
	}
	return f, err
}

// DeleteSnapshot forgets a snapshot. The kernel keeps what sandboxes made of it still use.
func (d *Driver) DeleteSnapshot(id sandbox.SnapshotID) error {
	if err := d.pool.Delete(string(id)); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	return nil
}

// Snapshots names the snapshots in the pool.
func (d *Driver) Snapshots() ([]sandbox.SnapshotID, error) {
	names, err := d.pool.List()
	if err != nil {
		return nil, err
	}
	var out []sandbox.SnapshotID
	for _, n := range names {
		if id, err := sandbox.ParseSnapshotID(n); err == nil && id.Edge() == d.cfg.Edge {
			out = append(out, id)
		}
	}
	return out, nil
}

// sweepFlushes removes the throw-away snapshots of a process that was killed.
func (d *Driver) sweepFlushes(names []string) error {
	for _, n := range names {
		if strings.HasSuffix(n, flushSuffix) {
			if err := d.pool.Delete(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// lowerSnapshots mounts snapshots for a shell, the top first, and tells what /etc the topmost that has one has.
func (d *Driver) lowerSnapshots(sh *shell, ids []sandbox.SnapshotID, etc *etcInfo) (out []*os.File, err error) {
	for i := len(ids) - 1; i >= 0; i-- {
		f, err := d.OpenSnapshot(ids[i])
		if err != nil {
			return out, err
		}
		mode, uid, gid, err := linux.StatAt(f, "etc")
		f.Close()
		if err == nil && !etc.present {
			*etc = etcInfo{true, mode, uid, gid}
		}
		m, err := d.pool.MountSnapshot(string(ids[i]), sh.userns)
		if err != nil {
			return out, fmt.Errorf("snapshot %s: %w", ids[i], err)
		}
		out = append(out, m)
	}
	return out, nil
}

// maxHosts bounds the /etc/hosts that a fork takes over.
const maxHosts = 1 << 20

// inheritHosts takes over the /etc/hosts of the sandbox that this one is forked from, with this one's name in it. Where
// that is no ordinary file any more, or a large one, this sandbox has a fresh one.
func (d *Driver) inheritHosts(sh *shell, id sandbox.SnapshotID) error {
	from, err := d.OpenSnapshot(id)
	if err != nil {
		return err
	}
	defer from.Close()
	hosts, hostname := readSmall(from, "etc/hosts", maxHosts), readSmall(from, "etc/hostname", 256)
	if len(hosts) == 0 {
		return nil
	}
	own, err := sh.layer.Open()
	if err != nil {
		return err
	}
	defer own.Close()
	name := bytes.TrimSpace(readSmall(own, "etc/hostname", 256))
	etc, err := linux.OpenDirAt(own, "etc")
	if err != nil || len(name) == 0 {
		return nil // the layers have something else there
	}
	defer etc.Close()
	lines := bytes.Split(hosts, []byte("\n"))
	for i, l := range lines {
		if bytes.Equal(l, append([]byte(hostsName), bytes.TrimSpace(hostname)...)) {
			lines[i] = append([]byte(hostsName), name...)
		}
	}
	return linux.WriteAt(etc, "hosts", bytes.Join(lines, []byte("\n")), 0o644)
}

// readSmall reads a regular file; nothing if there is none, or it has more than limit bytes.
func readSmall(dir *os.File, path string, limit int64) []byte {
	f, err := linux.OpenRegularAt(dir, path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil || int64(len(b)) > limit {
		return nil
	}
	return b
}
