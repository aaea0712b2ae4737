package microvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// seedSize is how much randomness a machine gets, bytes.
const seedSize = 64

// vmmThreads bounds QEMU's threads: what a sandbox's limit says of processes holds inside.
const vmmThreads = 256

// Create boots a machine and gives it the spec's environment.
func (d *Driver) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	switch {
	case len(spec.Layers) == 0:
		return nil, fmt.Errorf("create machine: %w: no layers", sandbox.ErrInvalid)
	case spec.Network != nil:
		return nil, fmt.Errorf("create machine: %w: machines have no network yet: leave its rules out, or use the container backend", sandbox.ErrUnsupported)
	case len(spec.Snapshots) > 0:
		return nil, fmt.Errorf("create machine: %w: snapshots are of containers as yet", sandbox.ErrUnsupported)
	}
	start := time.Now()
	image, err := d.bootImage(ctx)
	if err != nil {
		return nil, err
	}
	id := spec.ID
	if id == "" {
		id = sandbox.NewID(d.cfg.Edge)
	}
	d.mu.Lock()
	if n := len(d.instances) + len(d.making); n >= d.cfg.Max {
		d.mu.Unlock()
		return nil, fmt.Errorf("create machine: %w: %d machines run on this node (--opt microvm-max)", sandbox.ErrExhausted, n)
	}
	d.making[id] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.making, id)
		d.mu.Unlock()
	}()
	m := &hardware{boot: *image, kvm: d.kvm, tscKHz: tscKHz(), memory: (spec.Limits.MemoryBytes + guestOverhead + 1<<20 - 1) &^ (1<<20 - 1),
		cpus: int(min(max((spec.Limits.CPUMillis+999)/1000, 1), int64(runtime.NumCPU())))}
	if m.layers, err = d.layers(ctx, spec.Layers); err != nil {
		return nil, createFailure(ctx, err)
	}
	if n := m.disks(); n > maxDisks {
		return nil, fmt.Errorf("create machine: %w: %d layers are %d disks, and a machine has %d: collapse some of them",
			sandbox.ErrUnsupported, len(spec.Layers), n, maxDisks)
	}
	// One after the other they are sooner ready than all at once.
	select {
	case d.booting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	inst, err := d.bootMachine(ctx, id, spec, m)
	<-d.booting
	if err != nil {
		if rerr := d.remove(id); rerr != nil {
			d.log.Error("parts of a failed creation are left for the next sweep", "id", id, "err", rerr)
		}
		return nil, createFailure(ctx, err)
	}
	d.observe("create", start)
	return inst, nil
}

// layers finds the files of a stack.
func (d *Driver) layers(ctx context.Context, refs []sandbox.LayerRef) ([]layerFiles, error) {
	out := make([]layerFiles, len(refs))
	for i, r := range refs {
		l, err := d.cfg.Layers.Local(ctx, layer.Digest(r.Digest))
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", strings.TrimSpace(r.Name+" "+r.Digest), err)
		}
		out[i].meta = l.MetaPath
		if l.Manifest.Data.Size > 0 {
			out[i].data = l.DataPath
		}
	}
	return out, nil
}

// bootMachine makes the parts of a machine, recording it first, and claims it.
func (d *Driver) bootMachine(ctx context.Context, id sandbox.ID, spec *sandbox.Spec, m *hardware) (_ *instance, err error) {
	r := &record{ID: id, Boot: d.boot, Disk: spec.Limits.DiskBytes, Memory: spec.Limits.MemoryBytes, Pids: spec.Limits.Pids, Kernel: m.boot.version}
	if err := os.Mkdir(d.dir(id), 0o700); err != nil {
		return nil, err
	}
	if err := d.save(r); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("microvm/recorded"); err != nil {
		return nil, err
	}
	t := time.Now()
	if err := makeDisk(ctx, filepath.Join(d.dir(id), diskName), r.Disk); err != nil {
		return nil, err
	}
	d.observe("disk", t)
	groups, err := d.groups(id)
	if err != nil {
		return nil, err
	}
	if err := groups.Make(); err != nil {
		return nil, err
	}
	limits := spec.Limits
	limits.MemoryBytes, limits.Pids = m.memory+vmmOverhead, vmmThreads
	if err := groups.SetLimits(limits); err != nil {
		return nil, err
	}
	t = time.Now()
	p, err := d.startQEMU(r, m)
	if err != nil {
		return nil, err
	}
	i, err := d.newInstance(r, p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = i.bootFailure(err)
			i.forget()
		}
	}()
	if err := failpoint.Hit("microvm/started"); err != nil {
		return nil, err
	}
	boot, cancel := context.WithTimeout(ctx, d.cfg.BootTimeout)
	defer cancel()
	boot, stop := i.until(boot)
	defer stop()
	if err := i.attach(boot); err != nil {
		return nil, err
	}
	if err := i.claim(boot, spec, m); err != nil {
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
	said, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer said.Close()
	groups, err := d.groups(r.ID)
	if err != nil {
		return nil, err
	}
	birth, err := groups.Birth()
	if err != nil {
		return nil, err
	}
	defer birth.Close()
	cmd := exec.Command(d.cfg.QEMU, m.args()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, said, said
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(birth.Fd())}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	// While it is not waited for, its number is no other's.
	p, err := linux.OpenPID(cmd.Process.Pid)
	if err == nil {
		err = groups.Join(cmd.Process.Pid)
	}
	if err == nil {
		r.PID = cmd.Process.Pid
		if r.Start, err = linux.StartTime(r.PID); err == nil {
			err = d.save(r)
		}
	}
	if err == nil {
		// Wherever machines can be killed first instead of the node's own processes, they are.
		_ = linux.WritePlain("/proc/"+strconv.Itoa(r.PID)+"/oom_score_adj", "500")
	} else {
		_ = cmd.Process.Kill()
	}
	go func() { _ = cmd.Wait() }() // who wants to know of its end holds the descriptor
	return p, err
}

// claim gives the machine its environment.
func (i *instance) claim(ctx context.Context, spec *sandbox.Spec, m *hardware) error {
	hostname := spec.Hostname
	if hostname == "" {
		hostname = string(i.id)
	}
	p := &control.Prepare{Disk: diskSerial, Hostname: hostname, Memory: spec.Limits.MemoryBytes, Pids: spec.Limits.Pids,
		Seed: make([]byte, seedSize), Time: time.Now().UnixNano()}
	_, _ = rand.Read(p.Seed) // never fails
	for k, l := range m.layers {
		ref := control.Layer{Meta: metaSerial(k)}
		if l.data != "" {
			ref.Data = dataSerial(k)
		}
		p.Layers = append(p.Layers, ref)
	}
	ctl, err := i.control()
	if err != nil {
		return err
	}
	t := time.Now()
	if _, err := ctl.call(ctx, &control.Request{Op: control.OpPrepare, Prepare: p}); err != nil {
		return err
	}
	i.d.observe("prepare", t)
	c, err := i.connect(ctx)
	if err != nil {
		return err
	}
	err = c.Claim(ctx, &wire.Claim{Hostname: hostname, Env: spec.Env, User: spec.User, Workdir: spec.Workdir,
		NoNewPrivileges: spec.NoNewPrivileges, ShmBytes: spec.Limits.ShmBytes}, nil)
	if err != nil {
		c.Close()
		return err
	}
	i.mu.Lock()
	i.first = c
	i.mu.Unlock()
	return nil
}

// createFailure says whose fault a failed creation was; errors that are answers of their own stay.
func createFailure(ctx context.Context, err error) error {
	var f *sandbox.Failure
	var w *wire.Error
	switch {
	case errors.As(err, &w) && (w.Code == wire.CodeNoUser || w.Code == wire.CodeInvalid):
		return fmt.Errorf("%w: %s", sandbox.ErrInvalid, w.Message)
	case errors.Is(err, sandbox.ErrExhausted), errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrUnsupported):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &f):
		return err
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrUnavailable):
		return fmt.Errorf("%w: %w", sandbox.NewFailure(sandbox.KindImageUnavailable, "%v", err), err)
	}
	return sandbox.NewFailure(sandbox.KindInternal, "create machine: %v", err)
}
