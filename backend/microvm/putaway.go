package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// A paused machine can be put away: its memory and state lie beside its disk, and no QEMU runs. Its record says which of
// the two it is (record.Saved); everything else follows from that, at whatever step an edge is killed:
//
//	put away:    files written | record: saved | QEMU ends, and with it the tap
//	brought back: QEMU has the state, disks and tap | record: not saved | files removed | it goes on
//
// Until a record says so the other side of it is whole: a machine that stands still, or its files.

var _ sandbox.Saver = (*instance)(nil)

// errFullDisk is of kind sandbox.ErrExhausted.
var errFullDisk = fmt.Errorf("%w: the disk of the node's state is full: make room", sandbox.ErrExhausted)

// In a machine's directory: the directory of its memory and state while it is put away, and a name of the file that its memory was
// made from, so that it is known what that takes of the disk after its snapshot, template or saved memory is gone.
const (
	savedName  = "saved"
	memoryName = "memory"
)

func (d *Driver) savedDir(id sandbox.ID) string { return filepath.Join(d.dir(id), savedName) }

// removeSaved removes what a machine that runs does not need.
func (d *Driver) removeSaved(id sandbox.ID) error {
	dir := d.savedDir(id)
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+newSuffix))
}

// Saved tells whether the machine is put away.
func (i *instance) Saved() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.saved
}

// move begins to put the machine away or to bring it back: one at a time, and not once it is being destroyed. ctx ends then.
func (i *instance) move(ctx context.Context) (_ context.Context, done func(), err error) {
	i.moving.Lock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed || i.ended {
		i.moving.Unlock()
		return nil, nil, fmt.Errorf("machine %s: %w: it has ended", i.id, sandbox.ErrUnavailable)
	}
	ctx, cancel := context.WithCancel(ctx)
	i.stopMove = cancel
	return ctx, func() { cancel(); i.moving.Unlock() }, nil
}

// Save implements sandbox.Saver. Connections to dsec-init end.
func (i *instance) Save(ctx context.Context) (bytes int64, err error) {
	defer func() {
		if err != nil {
			if linux.NoRoom(err) {
				err = fmt.Errorf("%w: %w", errFullDisk, err)
			}
			err = fmt.Errorf("put machine %s away: %w", i.id, err)
		}
	}()
	ctx, done, err := i.move(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	if i.Saved() {
		return 0, nil
	}
	if i.limits.CPUs == 0 || len(i.limits.Layers) == 0 {
		return 0, fmt.Errorf("%w: it was started by an earlier version", sandbox.ErrUnsupported)
	}
	room, err := i.d.cfg.Saved.Reserve(i.d.savedDir(i.id), i.limits.RAM+maxState)
	if err != nil {
		return 0, err
	}
	defer room.Close()
	ctx, stop := i.until(ctx)
	defer stop()
	status, err := i.awaitStatus(ctx, func(s string) bool { return s != "finish-migrate" }) // an attempt that was cut off
	if err == nil && status == "postmigrate" {                                              // which QEMU saves no second time
		if err = i.run(ctx, "cont"); err == nil {
			err = i.run(context.WithoutCancel(ctx), "stop")
		}
		status = "paused"
	}
	if err != nil {
		return 0, err
	}
	if !qemu.StandsStill(status) {
		return 0, fmt.Errorf("%w: it is %s, not paused", sandbox.ErrFailedPrecondition, status)
	}
	if bytes, err = i.writeSaved(ctx); err != nil {
		return 0, errors.Join(err, i.d.removeSaved(i.id))
	}
	room.Close() // what is written counts from here on
	r := i.limits
	r.Saved = true
	if err := i.d.save(&r); err != nil {
		return 0, errors.Join(err, i.d.removeSaved(i.id))
	}
	i.mu.Lock()
	i.saved = true
	i.mu.Unlock()
	if err := failpoint.Hit("microvm/pause_saved"); err != nil {
		i.d.log.Warn("a machine that is put away may still run", "id", i.id, "err", err)
		return bytes, nil
	}
	if err := i.endQEMU(); err != nil { // whoever brings it back tries again first
		i.d.log.Warn("a machine that is put away may still run", "id", i.id, "err", err)
	}
	return bytes, nil
}

// writeSaved writes the files of a machine that stands still, and returns how many bytes they take.
func (i *instance) writeSaved(ctx context.Context) (int64, error) {
	note, err := i.d.newNote(ctx, &i.limits)
	if err != nil {
		return 0, err
	}
	if err := i.d.removeSaved(i.id); err != nil {
		return 0, err
	}
	dir := i.d.savedDir(i.id)
	fresh := dir + newSuffix
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return 0, err
	}
	if err := failpoint.Hit("microvm/pause_begun"); err != nil {
		return 0, err
	}
	ram := filepath.Join(fresh, ramName)
	state, err := i.saveMemory(ctx, ram)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(fresh, stateName), state, 0o400); err != nil {
		return 0, err
	}
	if note.RAM, err = digestRAM(ram, note.Memory); err != nil {
		return 0, err
	}
	if note.State, err = qemu.FileDigest(filepath.Join(fresh, stateName)); err != nil {
		return 0, err
	}
	if err := note.write(fresh); err != nil {
		return 0, err
	}
	// What the disk refuses is to be known while the machine is still there; and what is written gives back its memory.
	if err := syncFile(ram); err != nil {
		return 0, err
	}
	if err := failpoint.Hit("microvm/pause_written"); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return bytesOf(ram) + int64(len(state)), os.Rename(fresh, dir)
}

// bytesOf is what a file takes on its disk; 0 where that cannot be told.
func bytesOf(path string) int64 {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// endQEMU ends the machine's process, which is not the machine's end.
func (i *instance) endQEMU() error {
	i.mu.Lock()
	p, m, ctl, first, channel := i.pidfd, i.monitor, i.ctl, i.first, i.channel
	i.pidfd, i.monitor, i.ctl, i.first, i.channel = nil, nil, nil, nil, nil
	i.mu.Unlock()
	if first != nil {
		first.Close()
	}
	if channel != nil {
		channel.Close()
	}
	if m != nil {
		m.Close()
	}
	if ctl != nil {
		ctl.close()
	}
	if p != nil {
		i.d.watch.Remove(p)
		_ = linux.SignalPID(p, int(syscall.SIGKILL))
		p.Close()
	}
	if r, err := i.d.load(i.id); err == nil && p == nil { // one that an edge before this one had begun to bring back
		if left, err := r.process(); err == nil {
			_ = linux.SignalPID(left, int(syscall.SIGKILL))
			left.Close()
		}
	}
	// What takes its place names what it maps again; one that does not end at once has its memory a little longer than that is known.
	_ = os.Remove(filepath.Join(i.d.dir(i.id), memoryName))
	if i.groups.WaitEmpty(emptyWait) == nil {
		return nil
	}
	// Groups that were killed as a whole kill what is started in them later, too (Linux 6.18).
	err := errors.Join(i.groups.Kill(), i.groups.WaitEmpty(endTimeout))
	if err == nil {
		err = i.groups.Remove()
	}
	if err == nil {
		err = i.groups.Make()
	}
	if err != nil {
		return err
	}
	r := &i.limits
	return i.groups.SetLimits(sandbox.Limits{MemoryBytes: r.RAM + vmmOverhead, Pids: vmmThreads, CPUMillis: int64(r.CPUs) * 1000})
}

// emptyWait is how long a process that was killed by itself may take to go.
const emptyWait = 10 * time.Second

// bringBack starts a machine that was put away; it stands still then. After an error it is put away as before.
func (i *instance) bringBack(ctx context.Context) (err error) {
	if !i.Saved() {
		return nil
	}
	ctx, done, err := i.move(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !i.Saved() { // somebody else was faster
		return nil
	}
	if err := i.endQEMU(); err != nil { // of an attempt that was cut off
		return err
	}
	r, m, n, t, err := i.openPutAway(ctx)
	if errors.Is(err, sandbox.ErrFailedPrecondition) {
		err = fmt.Errorf("%w: as long as that is so it can only be stopped", err)
	}
	if err != nil {
		return fmt.Errorf("bring machine %s back: %w", i.id, err)
	}
	defer func() {
		if err == nil {
			return
		}
		if said := i.said(); said != "" {
			err = fmt.Errorf("%w: QEMU says: %s", err, said)
		}
		kind := sandbox.ErrUnavailable
		if linux.NoRoom(err) {
			kind = errFullDisk
		}
		err = fmt.Errorf("bring machine %s back: %w: %w", i.id, kind, err)
		if e := i.endQEMU(); e != nil {
			i.d.log.Warn("a machine that is put away may still run", "id", i.id, "err", e)
		}
	}()
	for _, name := range []string{monitorName, controlName, channelName} {
		_ = os.Remove(filepath.Join(i.d.dir(i.id), name)) // of its QEMU before
	}
	p, err := i.d.startQEMU(r, m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	i.mu.Lock()
	i.pidfd = p
	i.mu.Unlock()
	i.limits.PID, i.limits.Start = r.PID, r.Start
	gone := make(chan struct{})
	if err := i.d.watch.Add(p, func() {
		close(gone)
		cancel(errors.New("QEMU has ended"))
		go i.exited(p)
	}); err != nil {
		return err
	}
	if err := i.takeUp(ctx, n, t, m.layers); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	r.Saved = false
	if err := i.d.save(r); err != nil {
		return err
	}
	i.mu.Lock()
	i.saved = false
	i.mu.Unlock()
	select {
	case <-gone:
		i.exited(p)
	default:
	}
	if err := failpoint.Hit("microvm/pause_taken_up"); err != nil {
		i.d.log.Warn("files of a machine that runs are left until it ends", "id", i.id, "err", err)
		return nil
	}
	if err := i.d.removeSaved(i.id); err != nil { // they are looked for again when it is found again, or ends
		i.d.log.Warn("files of a machine that runs are left until it ends", "id", i.id, "err", err)
	}
	return nil
}

// takeUp gives a new QEMU all that the one before had.
func (i *instance) takeUp(ctx context.Context, n *snapshotNote, t *template, layers []layerFiles) error {
	ctx, cancel := i.within(ctx)
	defer cancel()
	if err := i.attachMonitor(ctx); err != nil {
		return err
	}
	if err := i.restore(ctx, t.state); err != nil {
		return err
	}
	if n.Slots > 0 {
		i.fills, i.filled = 0, map[string]filling{}
		if err := i.fill(ctx, layers); err != nil {
			return err
		}
	}
	if err := i.replug(ctx); err != nil {
		return err
	}
	if err := i.attachControl(ctx); err != nil {
		return err
	}
	return failpoint.Hit("microvm/pause_loaded")
}

// openPutAway finds all that a machine is brought back from. Error: sandbox.ErrFailedPrecondition where it is not as it was
// written, or of another QEMU.
func (i *instance) openPutAway(ctx context.Context) (*record, *hardware, *snapshotNote, *template, error) {
	fail := func(err error) (*record, *hardware, *snapshotNote, *template, error) { return nil, nil, nil, nil, err }
	r := i.limits
	r.Saved = true
	dir := i.d.savedDir(i.id)
	n, t, err := i.d.readNote(ctx, dir)
	if errors.Is(err, sandbox.ErrNotFound) { // not the sandbox, which is there
		err = fmt.Errorf("%w: it is damaged: its files are gone from %s", sandbox.ErrFailedPrecondition, dir)
	}
	if err != nil {
		return fail(err)
	}
	ram, err := digestRAM(filepath.Join(dir, ramName), n.Memory)
	if err != nil || string(ram) != string(n.RAM) {
		return fail(fmt.Errorf("%w: it is damaged: its memory is another", sandbox.ErrFailedPrecondition))
	}
	m, err := i.d.hardware(ctx, shape{r.CPUs, r.RAM})
	if err != nil {
		return fail(err)
	}
	if m.layers, err = i.d.layers(ctx, r.Layers); err != nil {
		return fail(err)
	}
	if err := i.d.mapAgain(ctx, m.layers, r.Mapped); err != nil {
		return fail(err)
	}
	m.clone, m.ram, m.slots, m.disk = true, filepath.Join(dir, ramName), n.Slots, r.Disk
	return &r, m, n, t, nil
}
