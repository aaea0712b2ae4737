package microvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// snapshotVersion is that of the files' meaning.
const snapshotVersion = 2

// snapshotNote says what a snapshot's files are and what they must be restored on; written last.
type snapshotNote struct {
	qemu.Made
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memory"` // of the machine, bytes
	Slots  int    `json:"slots"`  // 0: it was booted with its layers
	Disk   int64  `json:"disk"`   // bytes
	Mapped []bool `json:"mapped,omitempty"`
	Kernel string `json:"kernel,omitempty"` // its version, for people
	// SHA-256: of the files of memory and disk as digestRAM has it.
	RAM        []byte `json:"ram_digest"`
	State      []byte `json:"state_digest"`
	DiskDigest []byte `json:"disk_digest"`
}

// newNote describes a machine's snapshot, without digests.
func (d *Driver) newNote(ctx context.Context, r *record) (*snapshotNote, error) {
	version, err := d.qemuVersion(ctx)
	if err != nil {
		return nil, err
	}
	return &snapshotNote{Made: qemu.MadeHere(snapshotVersion, version, d.kvm), CPUs: r.CPUs, Memory: r.RAM, Slots: r.Slots, Disk: r.Disk, Mapped: r.Mapped,
		Kernel: r.Kernel}, nil
}

// digest notes what the files in dir are.
func (n *snapshotNote) digest(dir string) (err error) {
	if n.RAM, err = digestRAM(filepath.Join(dir, ramName), n.Memory); err != nil {
		return err
	}
	if n.DiskDigest, err = digestRAM(filepath.Join(dir, diskName), n.Disk&^4095); err != nil {
		return err
	}
	n.State, err = qemu.FileDigest(filepath.Join(dir, stateName))
	return err
}

func (n *snapshotNote) write(dir string) error {
	return qemu.WriteNote(filepath.Join(dir, noteName), n)
}

// openSaved reads a snapshot that fits this node, whole. Errors: ErrNotFound, ErrFailedPrecondition when it is damaged or
// of another QEMU or processor.
func (d *Driver) openSaved(ctx context.Context, id sandbox.SnapshotID) (*snapshotNote, *template, error) {
	dir := d.snapshotDir(id)
	n, t, err := d.readNote(ctx, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	if _, ok := d.verified.Load(id); ok {
		return n, t, nil
	}
	damaged := func(what string) (*snapshotNote, *template, error) {
		return nil, nil, fmt.Errorf("snapshot %s: %w: it is damaged: %s", id, sandbox.ErrFailedPrecondition, what)
	}
	have := *n
	if err := have.digest(dir); err != nil {
		return damaged(err.Error())
	}
	if !slices.Equal(have.RAM, n.RAM) || !slices.Equal(have.DiskDigest, n.DiskDigest) {
		return damaged("its memory or its disk is another")
	}
	d.verified.Store(id, true)
	return n, t, nil
}

// readNote reads what a directory's files are, and whether they fit this node. Errors: as openSaved.
func (d *Driver) readNote(ctx context.Context, dir string) (*snapshotNote, *template, error) {
	n := &snapshotNote{}
	if err := qemu.ReadNote(filepath.Join(dir, noteName), n); err != nil {
		return nil, nil, err
	}
	here, err := d.newNote(ctx, &record{})
	if err != nil {
		return nil, nil, err
	}
	if err := n.Fits(here.Made); err != nil {
		return nil, nil, err
	}
	t := &template{dir: dir}
	if t.state, err = os.ReadFile(filepath.Join(dir, stateName)); err != nil || !digested(t.state, n.State) {
		return nil, nil, fmt.Errorf("%w: it is damaged: its state is another", sandbox.ErrFailedPrecondition)
	}
	return n, t, nil
}

// goOn makes a machine that goes on from the last of the spec's snapshots.
func (d *Driver) goOn(ctx context.Context, spec *sandbox.Spec, m *hardware) (*instance, error) {
	id := spec.Snapshots[len(spec.Snapshots)-1]
	n, t, err := d.openSaved(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := d.mapAgain(ctx, m.layers, n.Mapped); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	m.memory += mappingCost(m.layers)
	if n.CPUs != m.cpus || n.Memory != m.memory || n.Disk != spec.Limits.DiskBytes {
		return nil, fmt.Errorf("snapshot %s: %w: what goes on in it has the size that it had: %d processors, %d bytes of memory, %d of disk",
			id, sandbox.ErrInvalid, n.CPUs, n.Memory-guestOverhead-mappingCost(m.layers), n.Disk)
	}
	done, err := d.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return d.resumeMachine(ctx, spec, m, n, t)
}

// resumeMachine starts a machine with a saved one's memory and a copy of its disk. After an error nothing is left.
func (d *Driver) resumeMachine(ctx context.Context, spec *sandbox.Spec, m *hardware, n *snapshotNote, t *template) (_ *instance, err error) {
	h := *m
	h.clone, h.ram, h.slots = true, filepath.Join(t.dir, ramName), n.Slots
	h.boot.version = n.Kernel // the one in its memory, whatever machines boot by now
	h.disk, h.from = n.Disk, filepath.Join(t.dir, diskName)
	i, err := d.startMachine(ctx, sandbox.NewID(d.cfg.Edge), &h)
	if err != nil {
		return nil, err
	}
	defer i.unlessMade(ctx, &err)
	ctx, cancel := i.within(ctx)
	defer cancel()
	ctx, stop := i.until(ctx)
	defer stop()
	i.boot = bootSaved
	i.limits.Memory, i.limits.Pids, i.limits.Layers = spec.Limits.MemoryBytes, spec.Limits.Pids, spec.Layers
	if err := d.save(&i.limits); err != nil {
		return nil, err
	}
	if err := i.groups.SetLimits(outerLimits(spec.Limits, m.memory)); err != nil {
		return nil, err
	}
	if err := i.attachMonitor(ctx); err != nil {
		return nil, err
	}
	if err := i.restore(ctx, t.state); err != nil {
		return nil, err
	}
	if n.Slots > 0 {
		if err := i.fill(ctx, m.layers); err != nil {
			return nil, err
		}
	}
	if err := i.attachControl(ctx); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("microvm/restored"); err != nil {
		return nil, err
	}
	if err := i.run(ctx, "cont"); err != nil {
		return nil, err
	}
	return i, i.renew(ctx, spec)
}

// renew makes a machine that goes on from another one's memory one of its own.
func (i *instance) renew(ctx context.Context, spec *sandbox.Spec) error {
	p := i.prepare(spec)
	ctl, err := i.control()
	if err != nil {
		return err
	}
	if p.Network, err = i.network(ctx, spec); err != nil {
		return err
	}
	if _, err := ctl.call(ctx, &control.Request{Op: control.OpRenew, Prepare: p}); err != nil {
		return err
	}
	c, err := i.connect(ctx)
	if err != nil {
		return err
	}
	err = c.Claim(ctx, &wire.Claim{Hostname: p.Hostname, Env: spec.Env, User: spec.User, Workdir: spec.Workdir}, nil)
	if err == nil {
		_, err = ctl.call(ctx, &control.Request{Op: control.OpThaw, Time: time.Now().UnixNano()})
	}
	if err != nil {
		c.Close()
		return err
	}
	i.mu.Lock()
	i.first = c
	i.mu.Unlock()
	return nil
}
