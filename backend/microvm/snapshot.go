package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/microvm/ext4"
	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/sandbox"
)

var _ sandbox.Snapshotter = (*Driver)(nil)

// snapshotRoot is where snapshots are: a directory each, named by its id.
func (d *Driver) snapshotRoot() string { return filepath.Join(d.cfg.StateDir, snapshotsDir) }

func (d *Driver) snapshotDir(id sandbox.SnapshotID) string {
	return filepath.Join(d.snapshotRoot(), string(id))
}

// Snapshot keeps a machine's memory and disk as they are at one moment. Its commands stand still before the machine does,
// so that those of its copies draw nothing before they have randomness of their own.
func (d *Driver) Snapshot(ctx context.Context, inst sandbox.Instance, id sandbox.SnapshotID, frozen bool) (cost sandbox.SnapshotCost, err error) {
	i, ok := inst.(*instance)
	if !ok {
		return cost, fmt.Errorf("snapshot: %w: not a machine", sandbox.ErrInvalid)
	}
	if i.limits.CPUs == 0 {
		return cost, fmt.Errorf("snapshot of %s: %w: its machine was started by an earlier version", i.id, sandbox.ErrUnsupported)
	}
	if err := i.bringBack(ctx); err != nil {
		return cost, err
	}
	note, err := d.newNote(ctx, &i.limits)
	if err != nil {
		return cost, err
	}
	most, err := i.mostSaved()
	if err != nil {
		return cost, err
	}
	room, err := d.cfg.Saved.Reserve(d.snapshotDir(id), most)
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
	if err := d.take(ctx, i, dir, room, frozen, &cost); err != nil {
		return cost, err
	}
	if err := note.digest(dir); err != nil {
		return cost, err
	}
	if err := note.write(dir); err != nil {
		return cost, err
	}
	if cost.Bytes, err = saved.Bytes(dir); err != nil {
		return cost, err
	}
	if err := failpoint.Hit("microvm/snapshot_taken"); err != nil {
		return cost, err
	}
	if err := os.Rename(dir, d.snapshotDir(id)); err != nil {
		return cost, err
	}
	d.verified.Store(id, true)
	return cost, nil
}

// mostSaved is what a snapshot of the machine as it is now takes at most, bytes.
func (i *instance) mostSaved() (int64, error) {
	disk, err := saved.Bytes(filepath.Join(i.d.dir(i.id), diskName))
	return i.limits.RAM + maxState + disk, err
}

// take writes a machine's files into dir, for which there is room, and lets it go on unless it stood still before.
func (d *Driver) take(ctx context.Context, i *instance, dir string, room *saved.Reservation, frozen bool, cost *sandbox.SnapshotCost) (err error) {
	start := time.Now()
	if frozen { // its commands are, and stay so
		if err := i.run(ctx, "cont"); err != nil {
			return err
		}
	}
	if err := i.flush(ctx); err != nil {
		if frozen {
			err = errors.Join(err, i.run(context.WithoutCancel(ctx), "stop"))
		}
		return err
	}
	cost.Flush = time.Since(start)
	if frozen {
		if err := i.run(ctx, "stop"); err != nil {
			return err
		}
	} else {
		start := time.Now()
		defer func() {
			if rerr := i.goOn(context.WithoutCancel(ctx)); rerr != nil {
				err = errors.Join(err, fmt.Errorf("let %s go on after a snapshot: %w", i.id, rerr))
			}
			cost.Frozen = time.Since(start)
		}()
		if _, err := i.ask(ctx, &control.Request{Op: control.OpFreeze}); err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
		if err := i.flush(ctx); err != nil { // what they wrote since
			return err
		}
		if err := i.run(ctx, "stop"); err != nil {
			return err
		}
		cost.Freeze = time.Since(start)
	}
	if err := failpoint.Hit("microvm/snapshot_frozen"); err != nil {
		return err
	}
	start = time.Now()
	most, err := i.mostSaved() // its disk may have grown, and does not any more
	if err == nil {
		err = room.Resize(most)
	}
	if err != nil {
		return err
	}
	if err := qemu.CopyFile(ctx, filepath.Join(dir, diskName), filepath.Join(d.dir(i.id), diskName)); err != nil {
		return err
	}
	state, err := i.saveMemory(ctx, filepath.Join(dir, ramName))
	if err != nil {
		return err
	}
	cost.Take = time.Since(start)
	return os.WriteFile(filepath.Join(dir, stateName), state, 0o400)
}

// flush makes the machine write what its disk lacks: the disk is to be readable without its memory.
func (i *instance) flush(ctx context.Context) error {
	ctl, err := i.control()
	if err != nil {
		return err
	}
	if _, err = ctl.call(ctx, &control.Request{Op: control.OpFlush}); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// goOn lets a machine go on that was stopped for a snapshot, and its commands.
func (i *instance) goOn(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := i.awaitStatus(wait, func(s string) bool { return s != "finish-migrate" })
	if err != nil || qemu.StandsStill(status) { // one that runs takes it too
		if cerr := i.run(ctx, "cont"); cerr != nil {
			return errors.Join(err, cerr)
		}
	}
	_, err = i.ask(ctx, &control.Request{Op: control.OpThaw, Time: time.Now().UnixNano()})
	return err
}

// saveMemory writes the memory of a machine that stands still to a file, and returns the rest of its state.
func (i *instance) saveMemory(ctx context.Context, path string) (state []byte, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(i.limits.RAM); err != nil {
		return nil, err
	}
	w := &pageWriter{f: f}
	err = i.save(ctx, func(r io.Reader) (err error) {
		if state, err = splitState(r, i.limits.RAM, w.page); err != nil {
			return err
		}
		return w.flush()
	})
	return state, err
}

// maxRun is how many bytes of pages are written at once.
const maxRun = 1 << 20

// pageWriter writes pages to an empty file, those that follow each other together. Each comes once.
type pageWriter struct {
	f   *os.File
	at  int64 // of run
	run []byte
}

func (w *pageWriter) page(at int64, b []byte) error {
	if b == nil {
		return nil // it is a hole
	}
	if at != w.at+int64(len(w.run)) || len(w.run) >= maxRun {
		if err := w.flush(); err != nil {
			return err
		}
		w.at = at
	}
	w.run = append(w.run, b...)
	return nil
}

func (w *pageWriter) flush() error {
	_, err := w.f.WriteAt(w.run, w.at)
	w.run = w.run[:0]
	return err
}

// DeleteSnapshot forgets one. Machines that went on from it keep the file of their memory until they end.
func (d *Driver) DeleteSnapshot(id sandbox.SnapshotID) error {
	d.verified.Delete(id)
	return errors.Join(os.RemoveAll(d.snapshotDir(id)), os.RemoveAll(d.snapshotDir(id)+newSuffix))
}

// Snapshots names those there are.
func (d *Driver) Snapshots() ([]sandbox.SnapshotID, error) {
	return qemu.Snapshots(d.snapshotRoot(), d.cfg.Edge)
}

// upperName is the directory of a snapshot with what its sandbox had written, made when it is asked for.
const upperName = "upper"

// unpackTimeout bounds its making.
const unpackTimeout = 5 * time.Minute

// OpenSnapshot opens what a sandbox had written: a copy, for the node's kernel does not mount what a machine has written.
func (d *Driver) OpenSnapshot(id sandbox.SnapshotID) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), unpackTimeout)
	defer cancel()
	d.unpacking.Lock()
	defer d.unpacking.Unlock()
	path := filepath.Join(d.snapshotDir(id), upperName)
	f, err := os.Open(path)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	disk, err := os.Open(filepath.Join(d.snapshotDir(id), diskName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("snapshot %s: %w", id, sandbox.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	room, l, err := d.roomToUnpack(id, disk)
	if err != nil {
		return nil, fmt.Errorf("disk of snapshot %s: %w", id, err)
	}
	defer room.Close()
	fresh := path + newSuffix
	if err = errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return nil, err
	}
	err = ext4.Extract(ctx, disk, l, upperName, fresh, erofs.OpaqueXattr, capabilityXattr)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if errors.Is(err, ext4.ErrBroken) { // by root in its machine
		err = fmt.Errorf("%w: %w", sandbox.ErrFailedPrecondition, err)
	}
	if linux.NoRoom(err) {
		err = fmt.Errorf("%w: %w", errFullDisk, err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("disk of snapshot %s: %w", id, err), os.RemoveAll(fresh))
	}
	return os.Open(path)
}

// roomToUnpack reserves what a snapshot takes with the files of its disk besides: as much as the disk again, and what more they turn
// out to take.
func (d *Driver) roomToUnpack(id sandbox.SnapshotID, disk *os.File) (*saved.Reservation, ext4.Limits, error) {
	dir := d.snapshotDir(id)
	var l ext4.Limits
	st, err := disk.Stat()
	if err != nil {
		return nil, l, err
	}
	there, err := saved.Bytes(dir)
	if err != nil {
		return nil, l, err
	}
	size, err := saved.Bytes(filepath.Join(dir, diskName))
	if err != nil {
		return nil, l, err
	}
	room, err := d.cfg.Saved.Reserve(dir, there+size)
	l = ext4.Limits{Size: st.Size(), Has: size, Room: func(total int64) error { return room.Resize(there + total) }}
	return room, l, err
}

// capabilityXattr holds what a program may do beyond its user.
const capabilityXattr = "security.capability"
