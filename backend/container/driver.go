package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/container/pool"
	"github.com/opendsec/dsec/backend/container/spawn"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/confine"
	"github.com/opendsec/dsec/sandbox"
)

// Driver is the container backend; it implements sandbox.Backend.
type Driver struct {
	cfg       Config
	log       *slog.Logger
	boot      string
	shellsDir string
	epoch     atomic.Uint64
	tree      *cgroup.Tree
	pool      *pool.Pool
	slots     *slots
	space     *linux.MountSpace
	mounts    *mounts
	spawner   *spawn.Client
	watch     *linux.ExitWatch
	filter    *os.File // the system-call filter, as a file; every dsec-init reads it
	profile   string   // AppArmor's, of all commands; "" where the host has none
	freed     chan struct{}

	remains remains

	stopPruning context.CancelFunc
	limits      atomic.Pointer[sandbox.Limits] // of the last sandbox whose shell had others; nil = none yet

	warmOnce sync.Once
	warm     *warm
	warmNet  *warm // nil without a network

	mu        sync.Mutex
	shells    map[sandbox.ID]bool      // of this process, without an environment yet
	instances map[sandbox.ID]*instance // of this process, not destroyed

	observer func(stage string, d time.Duration)
}

// New opens the driver on its state. It makes no shell before the first Create or Start.
func New(ctx context.Context, cfg Config) (_ *Driver, err error) {
	cfg.defaults()
	d := &Driver{cfg: cfg, log: cfg.Log, slots: newSlots(cfg.MaxShells),
		freed: make(chan struct{}, 1), shells: map[sandbox.ID]bool{}, instances: map[sandbox.ID]*instance{}}
	d.remains.d = d
	defer func() {
		if err != nil {
			d.closeParts()
		}
	}()
	if !linux.KernelAtLeast(6, 12) {
		return nil, fmt.Errorf("container backend: %w: it needs Linux 6.12 or newer", sandbox.ErrUnsupported)
	}
	if err := os.MkdirAll(filepath.Join(cfg.StateDir, "run/mnt"), 0o700); err != nil {
		return nil, err
	}
	if d.boot, err = linux.BootID(); err != nil {
		return nil, err
	}
	if err := d.openShells(); err != nil {
		return nil, err
	}
	d.openEpoch()
	if err := d.openTree(); err != nil {
		return nil, err
	}
	if err := d.openSpace(); err != nil {
		return nil, err
	}
	d.mounts = newMounts(cfg.Layers, cfg.Hold, d.space)
	d.pool, err = pool.Open(ctx, pool.Config{Image: filepath.Join(cfg.StateDir, "pool.img"), Size: cfg.PoolBytes, Hold: cfg.Hold, Mounts: d.space})
	if err != nil {
		return nil, err
	}
	if err := d.writeFilter(); err != nil {
		return nil, err
	}
	d.profile, err = confine.DefaultProfile().Load(ctx)
	if errors.Is(err, sandbox.ErrUnsupported) {
		d.log.Info("commands run without an AppArmor profile", "why", err)
	} else if err != nil {
		return nil, err
	}
	bin, err := d.installInit()
	if err != nil {
		return nil, err
	}
	if d.watch, err = linux.NewExitWatch(); err != nil {
		return nil, err
	}
	d.spawner = spawn.NewClient(bin, nil)
	pruning, stop := context.WithCancel(context.Background())
	d.stopPruning = stop
	go d.mounts.pruning(pruning)
	return d, nil
}

// Start begins to keep shells ready; Create does it as well. Call it after Sweep.
func (d *Driver) Start() {
	d.warmOnce.Do(func() {
		d.warm = newWarm(d, d.cfg.Warm, d.cfg.Parallel, false)
		if d.cfg.Network != nil {
			first := min(d.cfg.WarmNetFirst, d.cfg.WarmNet)
			if d.networked() { // a successor goes on as its predecessor did
				first = d.cfg.WarmNet
			}
			d.warmNet = newWarm(d, first, 1, true)
		}
	})
}

// ownName is what this node's places outside of its state directory are called.
func (d *Driver) ownName() string { return cgroup.Name("dsec", d.cfg.Edge, d.cfg.StateDir) }

// openTree finds the control groups of this state directory.
func (d *Driver) openTree() (err error) {
	d.tree, err = cgroup.Find(filepath.Join(d.cfg.StateDir, "run", "cgroups.json"), d.ownName())
	return err
}

// heldSpace is the mount namespace in the holder, on kernels that need one.
const heldSpace = "mounts"

// openSpace opens the place where mounts are made: the predecessor's, if the holder has kept it.
func (d *Driver) openSpace() error {
	ns, err := d.cfg.Hold.Get(heldSpace)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	open := linux.OpenMountSpace
	if d.cfg.AttachMounts {
		open = linux.OpenAttachedMountSpace
	}
	if d.space, err = open(filepath.Join(d.cfg.StateDir, "run", "mnt"), ns); err != nil {
		return err
	}
	if ns == nil && d.space.Namespace() != nil {
		return d.cfg.Hold.Put(heldSpace, d.space.Namespace())
	}
	return nil
}

// epochTick is the unit of time in epochs: a number of them since the machine's start fits in 32 bits for years.
const epochTick = 100 * time.Millisecond

// openEpoch counts the processes that have served this state directory: dsec-init lets the newest speak. Time since the
// machine's start, which no dsec-init outlives, stands in for a count that was lost or cannot be written: an edge must
// come back on a full disk too.
func (d *Driver) openEpoch() {
	path := filepath.Join(d.cfg.StateDir, "run", "epoch")
	n := uint64(linux.BootTime() / epochTick)
	b, err := os.ReadFile(path)
	if err == nil {
		var last uint64
		if last, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			n = max(n, last+1)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.log.Warn("the count of edges is unreadable; it goes on from the time since boot", "err", err)
	}
	d.epoch.Store(n << 32)
	if err = os.WriteFile(path+".new", []byte(strconv.FormatUint(n, 10)), 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		d.log.Warn("the count of edges is not written", "err", err)
	}
}

func (d *Driver) nextEpoch() uint64 { return d.epoch.Add(1) }

// writeFilter keeps the compiled filter in a file that shells inherit.
func (d *Driver) writeFilter() error {
	p, err := confine.Program(confine.Default())
	if err != nil {
		return err
	}
	path := filepath.Join(d.cfg.StateDir, "run", "seccomp.bpf")
	// Not written again without need: there may be no room.
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, p) {
		if err := os.WriteFile(path, p, 0o600); err != nil {
			return err
		}
	}
	d.filter, err = os.Open(path)
	return err
}

// installInit copies dsec-init to a place of ours with mode 0711: the kernel makes a process whose program its
// user namespace cannot read undumpable, out of reach even for root inside. The copy is named by its content,
// so that an upgrade does not change what runs.
func (d *Driver) installInit() (string, error) {
	src, err := os.Open(d.cfg.InitBinary)
	if err != nil {
		return "", fmt.Errorf("dsec-init: %w (build it, or say where it lies)", err)
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return "", err
	}
	dst := filepath.Join(d.cfg.StateDir, "run", fmt.Sprintf("dsec-init-%x-%x", st.ModTime().UnixNano(), st.Size()))
	if have, err := os.Stat(dst); err == nil && have.Size() == st.Size() && have.Mode().Perm() == 0o711 {
		return dst, nil
	}
	tmp := dst + ".new"
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o711)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, src)
	if err == nil {
		err = out.Chmod(0o711)
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", err
	}
	return dst, os.Rename(tmp, dst)
}

// Name returns sandbox.BackendContainer.
func (d *Driver) Name() sandbox.BackendName { return sandbox.BackendContainer }

// Capabilities of containers.
func (d *Driver) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Pause: true, Terminal: true, Ports: true, DiskQuota: true, CommandGroup: true, Real: true, Network: d.cfg.Network != nil, Snapshot: true}
}

// Warm is the number of shells that are ready.
func (d *Driver) Warm() int {
	n := 0
	for _, w := range []*warm{d.warm, d.warmNet} {
		if w != nil {
			n += w.count()
		}
	}
	return n
}

// Pool returns size and used bytes of the writable-layer pool.
func (d *Driver) Pool(context.Context) (size, used int64, err error) {
	size, free, err := d.pool.Usage()
	return size, size - free, err
}

// SetObserver makes f hear how long each stage of a creation took. Call it before Start.
func (d *Driver) SetObserver(f func(stage string, d time.Duration)) { d.observer = f }

func (d *Driver) observe(stage string, t time.Duration) {
	if d.observer != nil {
		d.observer(stage, t)
	}
}

// Close removes the ready shells and lets go of everything else; sandboxes go on.
func (d *Driver) Close(ctx context.Context) error {
	var errs []error
	d.warmOnce.Do(func() {}) // none are made from here on
	for _, w := range []*warm{d.warm, d.warmNet} {
		if w == nil {
			continue
		}
		for _, sh := range w.close() {
			d.watch.Remove(sh.pidfd)
			slot := sh.slot
			if err := d.removeParts(sh); err != nil {
				errs = append(errs, err)
				continue
			}
			d.slots.release(slot)
		}
	}
	d.remains.close()
	d.closeShells()
	_ = d.tree.Close() // succeeds when no sandbox is left; else its groups are needed
	d.closeParts()
	return errors.Join(errs...)
}

func (d *Driver) closeParts() {
	if d.cfg.Network != nil {
		_ = d.cfg.Network.Close()
	}
	if d.spawner != nil {
		d.spawner.Close()
	}
	if d.watch != nil {
		d.watch.Close()
		d.watch = nil
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.stopPruning != nil {
		d.stopPruning()
	}
	if d.mounts != nil {
		d.mounts.close()
	}
	if d.space != nil {
		if d.cfg.Hold == nil {
			_ = d.space.Unmount() // nobody comes back for them
		}
		d.space.Close()
	}
	closeAll([]*os.File{d.filter})
}
