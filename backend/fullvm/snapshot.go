package fullvm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

var _ sandbox.Snapshotter = (*Driver)(nil)

// Names in a snapshot's directory, beside those of a machine's files. The note is written last.
const (
	stateName = "state" // of the machine, its memory in it
	noteName  = "note.json"
	newSuffix = qemu.NewSuffix
)

// snapshotRoot is where snapshots are: a directory each, named by its id.
func (d *Driver) snapshotRoot() string { return filepath.Join(d.cfg.StateDir, snapshotsDir) }

func (d *Driver) snapshotDir(id sandbox.SnapshotID) string {
	return filepath.Join(d.snapshotRoot(), string(id))
}

// Snapshot keeps a machine's memory, devices and disk as they are at one moment. An agent's commands stand still before the
// machine does, so that those of its copies draw nothing before they have randomness of their own.
func (d *Driver) Snapshot(ctx context.Context, inst sandbox.Instance, id sandbox.SnapshotID, frozen bool) (cost sandbox.SnapshotCost, err error) {
	i, ok := inst.(*instance)
	if !ok {
		return cost, fmt.Errorf("snapshot: %w: not a full VM", sandbox.ErrInvalid)
	}
	if i.limits.CPUs == 0 {
		return cost, fmt.Errorf("snapshot of %s: %w: its machine was started by an earlier version", i.id, sandbox.ErrUnsupported)
	}
	disks, err := d.filesSize(i)
	if err != nil {
		return cost, err
	}
	room, err := d.cfg.Saved.Reserve(d.snapshotDir(id), maxState(i.limits.Memory)+disks)
	if err != nil {
		return cost, qemu.SnapshotError(i.id, err)
	}
	defer room.Close()
	dir := d.snapshotDir(id) + newSuffix
	if err := os.MkdirAll(d.snapshotRoot(), 0o700); err != nil {
		return cost, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return cost, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(qemu.SnapshotError(i.id, err), os.RemoveAll(dir))
		}
	}()
	ctx, stop := i.until(ctx)
	defer stop()
	n, err := d.newNote(ctx, &i.limits)
	if err != nil {
		return cost, err
	}
	n.Agent = closed(i.AgentUp())
	if n.State, err = d.take(ctx, i, dir, room, frozen, &cost); err != nil {
		return cost, err
	}
	if err := n.digest(dir); err != nil {
		return cost, err
	}
	if err := n.write(dir); err != nil {
		return cost, err
	}
	if cost.Bytes, err = saved.Bytes(dir); err != nil {
		return cost, err
	}
	if err := failpoint.Hit("fullvm/snapshot_taken"); err != nil {
		return cost, err
	}
	if err := os.Rename(dir, d.snapshotDir(id)); err != nil {
		return cost, err
	}
	d.verified.Store(id, true)
	return cost, nil
}

// filesSize is what copies of a machine's files take, bytes.
func (d *Driver) filesSize(i *instance) (n int64, err error) {
	for _, name := range i.limits.files() {
		more, err := saved.Bytes(filepath.Join(d.dir(i.id), name))
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
}

// take writes a machine's files into dir, for which there is room, and lets it go on unless it stood still before. It returns the
// digest of its state.
func (d *Driver) take(ctx context.Context, i *instance, dir string, room *saved.Reservation, frozen bool, cost *sandbox.SnapshotCost) (sum []byte, err error) {
	if !frozen {
		start := time.Now()
		i.freeze(ctx)
		defer func() {
			if rerr := i.goOn(context.WithoutCancel(ctx)); rerr != nil {
				err = errors.Join(err, fmt.Errorf("let %s go on after a snapshot: %w", i.id, rerr))
			}
			cost.Frozen = time.Since(start)
		}()
		if err := i.run(ctx, "stop"); err != nil {
			return nil, err
		}
		cost.Freeze = time.Since(start)
	}
	if err := failpoint.Hit("fullvm/snapshot_frozen"); err != nil {
		return nil, err
	}
	start := time.Now()
	// A saved machine has given its disks all that it holds of them.
	if sum, err = i.saveState(ctx, filepath.Join(dir, stateName)); err != nil {
		return nil, err
	}
	// How much there is to copy is certain only now.
	state, err := saved.Bytes(filepath.Join(dir, stateName))
	if err != nil {
		return nil, err
	}
	disks, err := d.filesSize(i)
	if err != nil {
		return nil, err
	}
	if err := room.Resize(state + disks); err != nil {
		return nil, err
	}
	for _, name := range i.limits.files() {
		if err := qemu.CopyFile(ctx, filepath.Join(dir, name), filepath.Join(d.dir(i.id), name)); err != nil {
			return nil, err
		}
	}
	cost.Take = time.Since(start)
	return sum, nil
}

// saveState writes the state of a machine that stands still to a file.
func (i *instance) saveState(ctx context.Context, path string) (sum []byte, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	err = qemu.Save(ctx, monitor{i}, func(r io.Reader) error {
		most := maxState(i.limits.Memory)
		n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, most+1))
		if err == nil && n > most {
			err = fmt.Errorf("QEMU tells more than %d bytes of a machine of %d", most, i.limits.Memory)
		}
		return err
	})
	return h.Sum(nil), err
}

// maxState bounds a machine's state, bytes: its memory, with eight bytes that name each page and some to spare, and its devices,
// of which its screen's memory is a part.
func maxState(memory int64) int64 { return memory + memory/256 + 128<<20 }

// goOn lets a machine go on that was stopped for a snapshot, and its commands.
func (i *instance) goOn(ctx context.Context) error {
	there, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	stands, err := i.stands(there)
	if err == nil && stands {
		err = i.run(ctx, "cont")
	}
	if err != nil {
		return err
	}
	i.thaw(ctx)
	return nil
}

// stands tells whether a machine waits to be let go on, once no saving of it is on its way: one that failed, or whose edge was
// killed, takes QEMU a moment to give up, in which it cannot be let go on.
func (i *instance) stands(ctx context.Context) (bool, error) {
	for {
		status, err := i.status(ctx)
		if err != nil || status != "finish-migrate" {
			return qemu.StandsStill(status), err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// OpenSnapshot is refused: what a system has written to its disk is no layer.
func (d *Driver) OpenSnapshot(id sandbox.SnapshotID) (*os.File, error) {
	return nil, fmt.Errorf("snapshot %s: %w: it is of a full VM, whose disk is no layer: packs are of containers and microVMs", id, sandbox.ErrUnsupported)
}

// DeleteSnapshot forgets one.
func (d *Driver) DeleteSnapshot(id sandbox.SnapshotID) error {
	d.verified.Delete(id)
	return errors.Join(os.RemoveAll(d.snapshotDir(id)), os.RemoveAll(d.snapshotDir(id)+newSuffix))
}

// Snapshots names those there are.
func (d *Driver) Snapshots() ([]sandbox.SnapshotID, error) {
	return qemu.Snapshots(d.snapshotRoot(), d.cfg.Edge)
}

// sweepSnapshots removes those that were not finished.
func (d *Driver) sweepSnapshots() error {
	unfinished, err := filepath.Glob(filepath.Join(d.snapshotRoot(), "*"+newSuffix))
	errs := []error{err}
	for _, path := range unfinished {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
