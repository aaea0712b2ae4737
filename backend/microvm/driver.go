package microvm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/linked"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// Driver is the backend of small virtual machines; it implements sandbox.Backend.
type Driver struct {
	cfg   Config
	log   *slog.Logger
	root  string // of the machines' directories
	boot  string // of the node
	epoch atomic.Uint64
	watch *linux.ExitWatch
	kvm   bool

	tscKHz int // of the node, once: templates depend on it

	treeMu sync.Mutex
	tree   *cgroup.Tree // nil = not needed yet

	imageMu sync.Mutex
	image   *bootImage // nil = not made yet
	version string     // of QEMU, likewise

	mu        sync.Mutex
	instances map[sandbox.ID]*instance // of this process, not destroyed
	making    map[sandbox.ID]bool      // not an instance yet
	creating  int                      // creations that were admitted

	places   *linked.Places // in the node's network
	verified sync.Map       // ids of snapshots whose files have been compared with their digests

	headMu sync.Mutex // of the files in vm-heads

	unpacking sync.Mutex // of a snapshot's disk, one at a time

	booting chan struct{} // one place for each machine that boots
	pool    *pool

	observer func(stage string, d time.Duration)
}

// epochTick is the unit of time in epochs: dsec-init lets the newest edge speak. Time since the node's start needs no
// file, and no dsec-init outlives that.
const epochTick = 100 * time.Millisecond

// New opens the driver on its state. It starts nothing, and asks for neither QEMU nor a kernel: the first Create does.
func New(_ context.Context, cfg Config) (_ *Driver, err error) {
	cfg.defaults()
	d := &Driver{cfg: cfg, log: cfg.Log, root: filepath.Join(cfg.StateDir, machinesDir),
		instances: map[sandbox.ID]*instance{}, making: map[sandbox.ID]bool{}, places: linked.NewPlaces(link.MicroVMs), booting: make(chan struct{}, runtime.NumCPU())}
	if err := errors.Join(os.MkdirAll(d.root, 0o700), forgetKernel(cfg.StateDir)); err != nil {
		return nil, err
	}
	if d.boot, err = linux.BootID(); err != nil {
		return nil, err
	}
	d.epoch.Store(uint64(linux.BootTime()/epochTick) << 32)
	d.pool, d.tscKHz = newPool(d), tscKHz()
	d.kvm = !cfg.NoKVM && feature.Have("KVM") == nil
	d.watch, err = linux.NewExitWatch()
	return d, err
}

// layoutPath tells where the control groups are.
func (d *Driver) layoutPath() string { return filepath.Join(d.root, "cgroups.json") }

// groups names the control groups of a machine.
func (d *Driver) groups(id sandbox.ID) (*cgroup.Sandbox, error) {
	d.treeMu.Lock()
	defer d.treeMu.Unlock()
	if d.tree == nil {
		if err := d.openTree(); err != nil {
			return nil, err
		}
	}
	return d.tree.Sandbox(string(id)), nil
}

// openTree finds the control groups of this state directory.
func (d *Driver) openTree() (err error) {
	d.tree, err = cgroup.Find(d.layoutPath(), cgroup.Name("dsec-vm", d.cfg.Edge, d.cfg.StateDir))
	return err
}

// Ready tells whether machines can be started here. Error: sandbox.ErrUnsupported, with what to run.
func (d *Driver) Ready() error {
	if _, err := exec.LookPath(d.cfg.QEMU); err != nil {
		return fmt.Errorf("microvm backend: %w: %w: install QEMU (apt-get install qemu-system-x86)", sandbox.ErrUnsupported, err)
	}
	if _, err := d.cfg.FindKernel(); err != nil {
		return fmt.Errorf("microvm backend: %w", err)
	}
	if _, err := exec.LookPath("mke2fs"); err != nil {
		return fmt.Errorf("microvm backend: %w: %w: install e2fsprogs", sandbox.ErrUnsupported, err)
	}
	return nil
}

// Accelerator is what runs the guests' instructions: kvm or tcg.
func (d *Driver) Accelerator() string {
	if d.kvm {
		return "kvm"
	}
	return "tcg"
}

// bootImage makes what machines start with, once.
func (d *Driver) bootImage(ctx context.Context) (*bootImage, error) {
	d.imageMu.Lock()
	defer d.imageMu.Unlock()
	if d.image != nil {
		return d.image, nil
	}
	if err := d.Ready(); err != nil {
		return nil, err
	}
	r, err := d.cfg.FindKernel()
	if err != nil {
		return nil, err
	}
	d.image, err = makeBootImage(ctx, filepath.Join(d.cfg.StateDir, "vm-boot"), r, d.cfg.InitBinary)
	if err != nil {
		return nil, fmt.Errorf("make the machines' initial file system: %w", err)
	}
	if err := noteKernel(d.cfg.StateDir, r); err != nil { // for people
		d.log.Warn("which kernel machines boot is not noted", "err", err)
	}
	return d.image, nil
}

func (d *Driver) dir(id sandbox.ID) string { return filepath.Join(d.root, string(id)) }

func (d *Driver) nextEpoch() uint64 { return d.epoch.Add(1) }

// Name returns sandbox.BackendMicroVM.
func (d *Driver) Name() sandbox.BackendName { return sandbox.BackendMicroVM }

// Capabilities of machines.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Pause: true, Terminal: true, Ports: true, DiskQuota: true, CommandGroup: true, Real: true,
		Snapshot: true, Memory: true, Saves: true, Network: d.cfg.Network != nil}
}

// Warm counts machines that are ready to be claimed.
func (d *Driver) Warm() int { return d.pool.warm() }

// SetObserver makes f hear how long each stage of a creation took. Call it before the first Create.
func (d *Driver) SetObserver(f func(stage string, d time.Duration)) { d.observer = f }

func (d *Driver) observe(stage string, since time.Time) {
	if d.observer != nil {
		d.observer("microvm_"+stage, time.Since(since))
	}
}

// Recover finds a machine that an earlier process made.
func (d *Driver) Recover(ctx context.Context, id sandbox.ID, handle []byte) (sandbox.Instance, error) {
	if string(handle) != string(id) {
		return nil, fmt.Errorf("recover %s: %w: not its handle", id, sandbox.ErrInvalid)
	}
	d.mu.Lock()
	have := d.instances[id]
	d.mu.Unlock()
	if have != nil { // the edge was started again, the driver was not
		if err := have.wakeAgain(ctx); err != nil {
			return nil, fmt.Errorf("recover %s: %w: %w", id, sandbox.ErrUnavailable, err)
		}
		return have, nil
	}
	r, err := d.load(id)
	if err != nil {
		return nil, err
	}
	if r.Saved {
		return d.recoverSaved(r)
	}
	p, err := r.process()
	if err != nil {
		return nil, err
	}
	if err := d.removeSaved(id); err != nil { // it was being put away, or has just been brought back
		d.log.Warn("files of a machine that runs are left until it ends", "id", id, "err", err)
	}
	i, err := d.newInstance(r, p)
	if err != nil {
		p.Close()
		return nil, err
	}
	if r.Net {
		d.places.Claim(r.Slot)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = i.attach(ctx)
	if err == nil {
		err = i.wake(ctx) // whoever asks for its commands' groups is to be answered
	}
	if err != nil {
		i.forget()
		return nil, fmt.Errorf("recover %s: %w: %w", id, sandbox.ErrUnavailable, err)
	}
	i.own()
	return i, nil
}

// recoverSaved finds a machine that was put away. What an edge that was killed had begun to bring back ends.
func (d *Driver) recoverSaved(r *record) (sandbox.Instance, error) {
	i, err := d.newInstance(r, nil)
	if err != nil {
		return nil, err
	}
	if r.Net {
		d.places.Claim(r.Slot)
	}
	i.own()
	if err := i.endQEMU(); err != nil {
		i.forget()
		return nil, fmt.Errorf("recover %s: %w: %w", r.ID, sandbox.ErrUnavailable, err)
	}
	return i, nil
}

// Sweep removes every part of machines that are not to be kept, found by their directories and control groups.
func (d *Driver) Sweep(ctx context.Context, keep func(sandbox.ID) bool) ([]string, error) {
	seen := map[string]bool{}
	dirs, err := os.ReadDir(d.root)
	if err != nil {
		return nil, err
	}
	for _, e := range dirs {
		seen[e.Name()] = e.IsDir()
	}
	if exists(d.layoutPath()) { // else no machine was ever made
		if _, err := d.groups(""); err != nil {
			return nil, err
		}
		groups, err := d.tree.List()
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			seen[g] = true
		}
	}
	var out []string
	var errs []error
	for _, dir := range []string{d.cfg.Templates, d.snapshotRoot()} {
		errs = append(errs, removeUnfinished(dir))
	}
	d.headMu.Lock() // one that is being made is none that was left
	errs = append(errs, removeUnfinished(d.headRoot()))
	d.headMu.Unlock()
	for name, is := range seen {
		id, err := sandbox.ParseID(name)
		if !is || err != nil || id.Edge() != d.cfg.Edge || keep(id) {
			continue
		}
		d.mu.Lock()
		inst, making := d.instances[id], d.making[id]
		d.mu.Unlock()
		if making || inst != nil && !inst.isOwned() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if inst != nil {
			err = inst.Destroy(ctx)
		} else {
			err = d.remove(id)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", id, err))
			continue
		}
		out = append(out, name)
	}
	return out, errors.Join(append(errs, d.sweepNetwork())...)
}

// removeUnfinished removes what was being made in a directory when its maker ended.
func removeUnfinished(dir string) error {
	unfinished, err := filepath.Glob(filepath.Join(dir, "*"+newSuffix))
	errs := []error{err}
	for _, path := range unfinished {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// endTimeout bounds how long a killed QEMU may take to go.
const endTimeout = 30 * time.Second

// remove removes all parts of an id, whoever made them.
func (d *Driver) remove(id sandbox.ID) error {
	g, err := d.groups(id)
	if err != nil {
		return err
	}
	if err := g.Kill(); err != nil {
		return err
	}
	if err := g.WaitEmpty(endTimeout); err != nil {
		return err
	}
	if err := d.unplug(id); err != nil {
		return err
	}
	if err := g.Remove(); err != nil {
		return err
	}
	return os.RemoveAll(d.dir(id))
}

// Close lets go of everything; machines go on, but for those that are nobody's.
func (d *Driver) Close(context.Context) error {
	d.pool.close()
	d.mu.Lock()
	var all []*instance
	for _, i := range d.instances {
		all = append(all, i)
	}
	d.mu.Unlock()
	for _, i := range all {
		i.forget()
	}
	d.watch.Close()
	d.treeMu.Lock()
	defer d.treeMu.Unlock()
	if d.tree != nil && d.tree.Close() == nil { // no machine is left; else its groups are needed
		_ = os.Remove(d.layoutPath())
		d.tree = nil
	}
	return nil
}

// Process opens a machine's QEMU, for tests that end it. Error: sandbox.ErrNotFound.
func (d *Driver) Process(id sandbox.ID) (*os.File, error) {
	r, err := d.load(id)
	if err != nil {
		return nil, err
	}
	return r.process()
}
