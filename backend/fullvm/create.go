package fullvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// vmmThreads bounds QEMU's threads.
const vmmThreads = 256

// Create starts a machine from the spec's disk. It is ready when its firmware has found something to start.
func (d *Driver) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	switch {
	case len(spec.Layers) != 1:
		return nil, fmt.Errorf("create full VM: %w: it has one disk, --base NAME, and nothing stacked on it", sandbox.ErrInvalid)
	case spec.Network != nil && d.cfg.Network == nil:
		return nil, fmt.Errorf("create full VM: %w: this node has no network for sandboxes: leave its rules out", sandbox.ErrUnsupported)
	}
	if err := d.Ready(); err != nil {
		return nil, err
	}
	start := time.Now()
	id := spec.ID
	if id == "" {
		id = sandbox.NewID(d.cfg.Edge)
	}
	d.mu.Lock()
	if n := len(d.instances) + len(d.making); n >= d.cfg.Max {
		d.mu.Unlock()
		return nil, fmt.Errorf("create full VM: %w: %d run on this node (--opt fullvm-max)", sandbox.ErrExhausted, n)
	}
	d.making[id] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.making, id)
		d.mu.Unlock()
	}()
	img, err := d.images.get(ctx, spec.Layers[0])
	if err != nil {
		return nil, createFailure(ctx, err)
	}
	make := d.start
	if len(spec.Snapshots) > 0 {
		make = d.goOn
	}
	inst, err := make(ctx, id, spec, img)
	if err != nil {
		d.images.put(img)
		if rerr := d.remove(id); rerr != nil {
			d.log.Error("parts of a failed creation are left for the next sweep", "id", id, "err", rerr)
		}
		return nil, createFailure(ctx, err)
	}
	d.observe("create", start)
	return inst, nil
}

// hardware is the machine of a spec and its disk.
func (d *Driver) hardware(spec *sandbox.Spec, img *image) (m *hardware, err error) {
	m = &hardware{kvm: d.kvm, ovmf: d.cfg.OVMF, memory: (spec.Limits.MemoryBytes + 1<<20 - 1) &^ (1<<20 - 1),
		cpus: int(min(max((spec.Limits.CPUMillis+999)/1000, 1), int64(runtime.NumCPU())))}
	m.firmware, err = disk.ParseFirmware(img.disk.Firmware)
	return m, err
}

// start makes the parts of a machine, recording it first, and lets it run. The instance owns img when it succeeds.
func (d *Driver) start(ctx context.Context, id sandbox.ID, spec *sandbox.Spec, img *image) (_ *instance, err error) {
	m, err := d.hardware(spec, img)
	if err != nil {
		return nil, err
	}
	size := spec.Limits.DiskBytes &^ (disk.SectorSize - 1)
	if size < img.disk.Size {
		return nil, fmt.Errorf("disk_bytes of %d: %w: the image is a disk of %d bytes, and the machine's is no smaller", spec.Limits.DiskBytes, sandbox.ErrInvalid, img.disk.Size)
	}
	m.seed = spec.CloudInit != nil
	r, err := d.note(id, spec, img, m, size)
	if err != nil {
		return nil, err
	}
	if err := disk.NewOverlay(filepath.Join(d.dir(id), diskName), size); err != nil {
		return nil, err
	}
	if m.firmware == disk.UEFI {
		if err := d.copyVars(id); err != nil {
			return nil, err
		}
	}
	tap, err := d.plug(r, spec)
	if err != nil {
		return nil, err
	}
	if tap != nil {
		defer tap.Close()
		m.mac, m.tap = r.MAC, true
	}
	if m.seed {
		if err := d.makeSeed(id, spec.CloudInit, spec.Hostname, d.inside(r)); err != nil {
			return nil, err
		}
	}
	if err := d.bound(id, spec.Limits, m.memory); err != nil {
		return nil, err
	}
	t := time.Now()
	w, err := qemu.OpenWords(d.dir(id))
	if err != nil {
		return nil, err
	}
	defer w.Close() // the instance has its own by then
	p, err := d.startQEMU(r, m, img, tap)
	if err != nil {
		return nil, err
	}
	i, err := d.newInstance(r, p)
	if err != nil {
		return nil, err
	}
	i.env = spec.Env
	defer func() {
		if err != nil {
			err = i.bootFailure(err)
			i.forget()
		}
	}()
	if err := failpoint.Hit("fullvm/started"); err != nil {
		return nil, err
	}
	boot, cancel := context.WithTimeout(ctx, d.cfg.BootTimeout)
	defer cancel()
	boot, stop := i.until(boot)
	defer stop()
	if err := i.attach(boot); err != nil {
		return nil, err
	}
	if err := i.noteBlank(boot); err != nil {
		return nil, err
	}
	if err := i.run(boot, "cont"); err != nil {
		return nil, err
	}
	if err := i.booted(boot); err != nil {
		return nil, err
	}
	d.observe("boot", t)
	if img.disk.Agent {
		if err := i.awaitAgent(ctx); err != nil {
			return nil, err
		}
		d.observe("agent", t)
	}
	i.mu.Lock()
	i.image = img
	i.mu.Unlock()
	return i, nil
}

// note makes a machine's directory, with a record of what is going to be.
func (d *Driver) note(id sandbox.ID, spec *sandbox.Spec, img *image, m *hardware, size int64) (*record, error) {
	r := &record{ID: id, Process: qemu.Process{Boot: d.boot}, Disk: size, Memory: spec.Limits.MemoryBytes, Pids: spec.Limits.Pids, Image: img.digest, Firmware: m.firmware,
		CPUs: m.cpus, Seed: m.seed, Hostname: cmp.Or(spec.Hostname, string(id)), User: spec.User, Workdir: spec.Workdir, NoNewPrivileges: spec.NoNewPrivileges}
	if err := os.Mkdir(d.dir(id), 0o700); err != nil {
		return nil, err
	}
	if err := d.save(r); err != nil {
		return nil, err
	}
	return r, failpoint.Hit("fullvm/recorded")
}

// bound makes a machine's control groups, with the limits of its QEMU.
func (d *Driver) bound(id sandbox.ID, limits sandbox.Limits, memory int64) error {
	groups, err := d.groups(id)
	if err != nil {
		return err
	}
	if err := groups.Make(); err != nil {
		return err
	}
	limits.MemoryBytes, limits.Pids = memory+vmmOverhead, vmmThreads
	return groups.SetLimits(limits)
}

// copyVars gives the machine the variables of its firmware, as they come from the distribution.
func (d *Driver) copyVars(id sandbox.ID) error {
	b, err := os.ReadFile(varsPath(d.cfg.OVMF))
	if err == nil {
		_, err = os.Stat(codePath(d.cfg.OVMF))
	}
	if err != nil {
		return fmt.Errorf("create full VM: %w: %w: the disk starts by UEFI: install its firmware (apt-get install ovmf)", sandbox.ErrUnsupported, err)
	}
	return os.WriteFile(filepath.Join(d.dir(id), varsName), b, 0o600)
}

// startQEMU starts the process in its groups and records it.
func (d *Driver) startQEMU(r *record, m *hardware, img *image, tap *os.File) (*os.File, error) {
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
	base, err := img.open()
	if err != nil {
		return nil, err
	}
	defer base.Close()
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
	cmd.ExtraFiles = []*os.File{base}
	if tap != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, tap)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(birth.Fd())}
	join := func(pid int) error {
		if err := qemu.Unwait(said); err != nil {
			d.log.Warn("what QEMU says may stop it", "id", r.ID, "err", err)
		}
		return groups.Join(pid)
	}
	return r.Run(cmd, join, func() error { return d.save(r) })
}

// What SeaBIOS says on its debug port.
const (
	biosStarts = "Booting from 0000:7c00"
	biosLacks  = "No bootable device"
)

// errNoSystem is a disk with nothing to start on it.
var errNoSystem = errors.New("its disk has nothing that the firmware could start")

// booted waits until the firmware hands over to what is on the disk. UEFI does not say when: there it is when the screen
// shows something.
func (i *instance) booted(ctx context.Context) error {
	for {
		said := i.firmware(ctx)
		switch {
		case strings.Contains(said, biosLacks):
			return errNoSystem
		case strings.Contains(said, biosStarts):
			return nil
		case i.limits.Firmware == disk.UEFI:
			_, _, _, err := i.Picture(ctx)
			if err == nil {
				return nil
			}
			if !errors.Is(err, errNoPicture) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond): // the firmware tells nobody
		}
	}
}

// createFailure says whose fault a failed creation was; errors that are answers of their own stay.
func createFailure(ctx context.Context, err error) error {
	var f *sandbox.Failure
	switch {
	case errors.Is(err, sandbox.ErrExhausted), errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrUnsupported),
		errors.Is(err, sandbox.ErrFailedPrecondition):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &f):
		return err
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrUnavailable):
		return fmt.Errorf("%w: %w", sandbox.NewFailure(sandbox.KindImageUnavailable, "%v", err), err)
	}
	return sandbox.NewFailure(sandbox.KindInternal, "create full VM: %v", err)
}
