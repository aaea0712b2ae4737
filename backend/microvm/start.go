package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// startMachine makes the parts of a machine, recording it first, and starts QEMU. After an error nothing is left.
func (d *Driver) startMachine(ctx context.Context, id sandbox.ID, m *hardware) (_ *instance, err error) {
	d.mu.Lock()
	d.making[id] = true
	d.mu.Unlock()
	defer func() {
		if err != nil {
			if rerr := d.remove(id); rerr != nil {
				d.log.Error("parts of a machine are left for the next sweep", "id", id, "err", rerr)
			}
		}
		d.mu.Lock()
		delete(d.making, id)
		d.mu.Unlock()
	}()
	r := &record{ID: id, Process: qemu.Process{Boot: d.boot}, Kernel: m.boot.version, CPUs: m.cpus, RAM: m.memory, Slots: m.slots, Mapped: mappedFlags(m.layers)}
	if err := os.Mkdir(d.dir(id), 0o700); err != nil {
		return nil, err
	}
	if err := d.save(r); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("microvm/recorded"); err != nil {
		return nil, err
	}
	if m.disk > 0 {
		t := time.Now()
		path := filepath.Join(d.dir(id), diskName)
		if m.from != "" {
			err = d.cfg.Saved.Copy(ctx, path, m.from)
		} else {
			err = makeDisk(ctx, path, m.disk)
		}
		if err != nil {
			return nil, err
		}
		r.Disk = m.disk
		d.observe("disk", t)
	}
	groups, err := d.groups(id)
	if err != nil {
		return nil, err
	}
	if err := groups.Make(); err != nil {
		return nil, err
	}
	limits := sandbox.Limits{MemoryBytes: m.memory + vmmOverhead, Pids: vmmThreads, CPUMillis: int64(m.cpus) * 1000}
	if err := groups.SetLimits(limits); err != nil {
		return nil, err
	}
	w, err := qemu.OpenWords(d.dir(id))
	if err != nil {
		return nil, err
	}
	defer w.Close() // the instance has its own by then
	p, err := d.startQEMU(r, m)
	if err != nil {
		return nil, err
	}
	return d.newInstance(r, p)
}

// bootMachine boots a machine with its layers, and claims it. After an error nothing is left.
func (d *Driver) bootMachine(ctx context.Context, id sandbox.ID, spec *sandbox.Spec, m *hardware) (_ *instance, err error) {
	h := *m
	h.disk = spec.Limits.DiskBytes
	t := time.Now()
	i, err := d.startMachine(ctx, id, &h)
	if err != nil {
		return nil, err
	}
	defer i.unlessMade(ctx, &err)
	i.boot = bootCold
	i.limits.Memory, i.limits.Pids, i.limits.Layers = spec.Limits.MemoryBytes, spec.Limits.Pids, spec.Layers
	if err := d.save(&i.limits); err != nil {
		return nil, err
	}
	if err := i.groups.SetLimits(outerLimits(spec.Limits, m.memory)); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("microvm/started"); err != nil {
		return nil, err
	}
	boot, cancel := i.within(ctx)
	defer cancel()
	boot, stop := i.until(boot)
	defer stop()
	if err := i.attach(boot); err != nil {
		return nil, err
	}
	if err := i.awaitReady(boot); err != nil {
		return nil, err
	}
	if err := i.claim(boot, spec, m.layers); err != nil {
		return nil, err
	}
	d.observe("boot", t)
	return i, failpoint.Hit("microvm/claimed")
}

// makeDisk makes the writable layer: a sparse file with an empty ext4. It needs no journal, for it does not outlive the
// machine.
func makeDisk(ctx context.Context, path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(size&^4095), f.Close())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096", "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", path)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if size < minDisk {
			return fmt.Errorf("disk_bytes of %d: %w: a machine's disk takes at least %d", size, sandbox.ErrInvalid, minDisk)
		}
		return fmt.Errorf("make the disk: %w: %.512s", err, out)
	}
	return nil
}

// minDisk is what ext4 always fits into.
const minDisk = 4 << 20

// startQEMU starts the process in its groups and records it.
func (d *Driver) startQEMU(r *record, m *hardware) (*os.File, error) {
	dir := d.dir(r.ID)
	w, err := qemu.OpenWords(dir)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	said, err := w.Pen()
	if err != nil {
		return nil, err
	}
	defer said.Close()
	groups, err := d.groups(r.ID)
	if err != nil {
		return nil, err
	}
	// Whatever runs shares it: nobody can write there, and nothing is in it.
	jailed := *m
	jailed.jail = filepath.Join(d.cfg.StateDir, "run", "vm-jail")
	if err := os.MkdirAll(jailed.jail, 0o555); err != nil {
		return nil, err
	}
	birth, err := groups.Birth()
	if err != nil {
		return nil, err
	}
	defer birth.Close()
	var files []*os.File
	if jailed.slots == 0 {
		files, err = jailed.hand()
		defer func() {
			for _, f := range files {
				f.Close()
			}
		}()
		if err != nil {
			return nil, fmt.Errorf("layers of %s: %w", r.ID, err)
		}
	}
	if err := d.nameMemory(r.ID, m); err != nil {
		return nil, err
	}
	cmd := exec.Command(d.cfg.QEMU, jailed.args()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, said, said, files
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(birth.Fd()),
		// It sees no other process, reaches no network but by the tap that it is handed, and shares no memory by name.
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	join := func(pid int) error {
		if err := qemu.Unwait(said); err != nil {
			d.log.Warn("what QEMU says may stop it", "id", r.ID, "err", err)
		}
		return groups.Join(pid)
	}
	return r.Run(cmd, join, func() error { return d.save(r) })
}

// nameMemory gives the file that a machine's memory is made from a name in the machine's directory, where both are on one disk.
func (d *Driver) nameMemory(id sandbox.ID, m *hardware) error {
	if !m.clone {
		return nil
	}
	name := filepath.Join(d.dir(id), memoryName)
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(m.ram, name); err != nil && !errors.Is(err, syscall.EXDEV) {
		return err
	}
	return nil
}

// awaitReady waits until the machine answers: what a claim says of the time of day must not wait in a port until it has
// booted.
func (i *instance) awaitReady(ctx context.Context) error {
	ctl, err := i.control()
	if err != nil {
		return err
	}
	_, err = ctl.call(ctx, &control.Request{Op: control.OpStats})
	return err
}
