package microvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// Create makes a machine with the spec's environment: one that is ready, a clone, or a booted one.
func (d *Driver) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	switch {
	case len(spec.Layers) == 0:
		return nil, fmt.Errorf("create machine: %w: no layers", sandbox.ErrInvalid)
	case spec.Network != nil && d.cfg.Network == nil:
		return nil, fmt.Errorf("create machine: %w: this node has no network for sandboxes: leave its rules out", sandbox.ErrUnsupported)
	}
	if err := fits(spec.Limits); err != nil {
		return nil, err
	}
	if err := d.Ready(); err != nil {
		return nil, err
	}
	start := time.Now()
	layers, err := d.layers(ctx, spec.Layers)
	if err != nil {
		return nil, createFailure(ctx, err)
	}
	m, err := d.hardware(ctx, shapeOf(spec.Limits))
	if err != nil {
		return nil, err
	}
	m.layers = layers
	how := ""
	if len(spec.Snapshots) == 0 {
		if how, err = d.mapLayers(ctx, m); err != nil {
			return nil, createFailure(ctx, err)
		}
	}
	if n := m.disks(); n > maxTargets && !mapped(m.layers) {
		return nil, fmt.Errorf("create machine: %w: %d layers are %d disks, and a machine has %d: collapse some of them",
			sandbox.ErrUnsupported, len(spec.Layers), n, maxTargets)
	}
	done, err := d.admit(spec.ID)
	if err != nil {
		return nil, err
	}
	defer done()
	make := d.obtain
	if len(spec.Snapshots) > 0 {
		make = d.goOn
	}
	inst, err := make(ctx, spec, m)
	if err != nil {
		return nil, createFailure(ctx, err)
	}
	inst.own()
	inst.layersAs = how
	d.observe("create", start)
	return inst, nil
}

// fits refuses what is more than the node has: machines have whole processors, and their memory is not lent twice.
func fits(l sandbox.Limits) error {
	if have := int64(runtime.NumCPU()); l.CPUMillis > have*1000 {
		return fmt.Errorf("create machine: %w: cpu_millis of %d: this node has %d processors, %d: ask for less or use another node",
			sandbox.ErrExhausted, l.CPUMillis, have, have*1000)
	}
	have, err := linux.TotalMemory()
	if err != nil {
		return err
	}
	if need := shapeOf(l).memory + vmmOverhead; need > have {
		return fmt.Errorf("create machine: %w: memory_bytes of %d takes %d MiB with the machine's own: this node has %d MiB: ask for less or use another node",
			sandbox.ErrExhausted, l.MemoryBytes, need>>20, have>>20)
	}
	return nil
}

// shapeOf is the shape of a machine for a sandbox's limits.
func shapeOf(l sandbox.Limits) shape {
	return shape{memory: (l.MemoryBytes + guestOverhead + 1<<20 - 1) &^ (1<<20 - 1),
		cpus: int(min(max((l.CPUMillis+999)/1000, 1), int64(runtime.NumCPU())))}
}

// hardware is a machine of a shape, without layers.
func (d *Driver) hardware(ctx context.Context, s shape) (*hardware, error) {
	image, err := d.bootImage(ctx)
	if err != nil {
		return nil, err
	}
	return &hardware{boot: *image, kvm: d.kvm, tscKHz: d.tscKHz, cpus: s.cpus, memory: s.memory}, nil
}

// admit notes a creation, if there is room for another machine. done must follow.
func (d *Driver) admit(id sandbox.ID) (done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.creating
	for _, i := range d.instances {
		if i.isOwned() {
			n++
		}
	}
	if n >= d.cfg.Max {
		return nil, fmt.Errorf("create machine: %w: %d machines run on this node (--opt microvm-max)", sandbox.ErrExhausted, n)
	}
	d.creating++
	return func() {
		d.mu.Lock()
		d.creating--
		d.mu.Unlock()
	}, nil
}

// obtain claims a machine that is ready, or else makes a clone of a template, or else boots one. What does not come up
// is made up for by the next slower way.
func (d *Driver) obtain(ctx context.Context, spec *sandbox.Spec, m *hardware) (*instance, error) {
	s := shape{m.cpus, m.memory}
	if len(m.layers) > warmLayers || mapped(m.layers) || spec.ID != "" { // those have ids already
		return d.bootOne(ctx, spec, m)
	}
	ready, t, end := d.pool.begin(s, spec.Limits.DiskBytes)
	defer end()
	if ready != nil {
		err := d.settle(ctx, ready, bootWarm, spec, m.layers)
		if err == nil {
			return ready, nil
		}
		if final(ctx, err) {
			return nil, err
		}
		d.log.Warn("a machine that was ready could not be claimed; another one is made", "id", ready.id, "err", err)
	}
	if t != nil {
		i, err := d.cloneOne(ctx, spec, m, t)
		d.pool.cloned(s, t, err == nil || final(ctx, err))
		if err == nil || final(ctx, err) {
			return i, err
		}
		d.log.Warn("a clone did not come up; a machine is booted", "err", err)
	}
	return d.bootOne(ctx, spec, m)
}

// final tells errors that another machine would not mend.
func final(ctx context.Context, err error) bool {
	return ctx.Err() != nil || refused(err) || errors.Is(err, sandbox.ErrExhausted) || errors.Is(err, sandbox.ErrUnsupported)
}

// turn waits for a place among those that come up: one after the other they are sooner ready than all at once.
func (d *Driver) turn(ctx context.Context) (done func(), err error) {
	select {
	case d.booting <- struct{}{}:
		return func() { <-d.booting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cloneOne makes a clone with the spec's environment.
func (d *Driver) cloneOne(ctx context.Context, spec *sandbox.Spec, m *hardware, t *template) (*instance, error) {
	done, err := d.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	i, err := d.cloneMachine(ctx, sandbox.NewID(d.cfg.Edge), m, t)
	if err != nil {
		return nil, err
	}
	return i, d.settle(ctx, i, bootClone, spec, m.layers)
}

// unlessMade ends the machine of a creation that failed with *err, and adds to that what is known of it.
func (i *instance) unlessMade(ctx context.Context, err *error) {
	if *err == nil {
		return
	}
	*err = i.bootFailure(*err)
	if derr := i.Destroy(context.WithoutCancel(ctx)); derr != nil {
		i.d.log.Error("parts of a failed creation are left for the next sweep", "id", i.id, "err", derr)
	}
}

// settle gives a machine that stands still without an environment the spec's. After an error nothing is left of it.
func (d *Driver) settle(ctx context.Context, i *instance, boot string, spec *sandbox.Spec, layers []layerFiles) (err error) {
	defer i.unlessMade(ctx, &err)
	ctx, cancel := i.within(ctx)
	defer cancel()
	ctx, stop := i.until(ctx)
	defer stop()
	i.boot = boot
	t := time.Now()
	path := filepath.Join(d.dir(i.id), diskName)
	if have := i.limits.Disk; have != spec.Limits.DiskBytes {
		if have != 0 {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		if err := makeDisk(ctx, path, spec.Limits.DiskBytes); err != nil {
			return err
		}
	}
	d.observe("disk", t)
	t = time.Now()
	i.limits.Disk, i.limits.Memory, i.limits.Pids, i.limits.Layers = spec.Limits.DiskBytes, spec.Limits.MemoryBytes, spec.Limits.Pids, spec.Layers
	if err := d.save(&i.limits); err != nil {
		return err
	}
	if err := i.groups.SetLimits(outerLimits(spec.Limits, i.limits.RAM)); err != nil {
		return err
	}
	d.observe("limits", t)
	t = time.Now()
	if err := i.fill(ctx, layers); err != nil {
		return err
	}
	if err := i.run(ctx, "cont"); err != nil {
		return err
	}
	d.observe("fill", t)
	if err := failpoint.Hit("microvm/filled"); err != nil {
		return err
	}
	if err := i.claim(ctx, spec, layers); err != nil {
		return err
	}
	return failpoint.Hit("microvm/claimed")
}

// outerLimits bound a machine from outside: QEMU needs more than what it runs.
func outerLimits(l sandbox.Limits, memory int64) sandbox.Limits {
	l.MemoryBytes, l.Pids = memory+vmmOverhead, vmmThreads
	return l
}

// bootOne boots a machine with the spec's environment.
func (d *Driver) bootOne(ctx context.Context, spec *sandbox.Spec, m *hardware) (*instance, error) {
	done, err := d.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	id := spec.ID
	if id == "" {
		id = sandbox.NewID(d.cfg.Edge)
	}
	return d.bootMachine(ctx, id, spec, m)
}

// layers finds the files of a stack.
func (d *Driver) layers(ctx context.Context, refs []sandbox.LayerRef) ([]layerFiles, error) {
	out := make([]layerFiles, len(refs))
	for i, r := range refs {
		l, err := d.cfg.Layers.Local(ctx, layer.Digest(r.Digest))
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", strings.TrimSpace(r.Name+" "+r.Digest), err)
		}
		out[i].meta, out[i].local = l.MetaPath, l
		if l.Manifest.Data.Size > 0 {
			out[i].data = l.DataPath
		}
	}
	return out, nil
}

// prepare is what a machine is told first: who it is, randomness, and the time of day.
func (i *instance) prepare(spec *sandbox.Spec) *control.Prepare {
	p := &control.Prepare{Disk: diskSerial, Hostname: spec.Hostname, Memory: spec.Limits.MemoryBytes, Pids: spec.Limits.Pids,
		Seed: make([]byte, seedSize), Time: time.Now().UnixNano()}
	if p.Hostname == "" {
		p.Hostname = string(i.id)
	}
	_, _ = rand.Read(p.Seed) // never fails
	return p
}

// claim gives the machine its environment.
func (i *instance) claim(ctx context.Context, spec *sandbox.Spec, layers []layerFiles) error {
	p := i.prepare(spec)
	p.Layers = refs(layers)
	ctl, err := i.control()
	if err != nil {
		return err
	}
	if p.Network, err = i.network(ctx, spec); err != nil {
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
	err = c.Claim(ctx, &wire.Claim{Hostname: p.Hostname, Env: spec.Env, User: spec.User, Workdir: spec.Workdir,
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

// refused tells errors that the spec or the environment is to blame for.
func refused(err error) bool {
	var w *wire.Error
	return errors.Is(err, sandbox.ErrInvalid) || errors.As(err, &w) && (w.Code == wire.CodeNoUser || w.Code == wire.CodeInvalid)
}

// createFailure says whose fault a failed creation was; errors that are answers of their own stay.
func createFailure(ctx context.Context, err error) error {
	var f *sandbox.Failure
	var w *wire.Error
	switch {
	case errors.As(err, &w) && refused(err):
		return fmt.Errorf("%w: %s", sandbox.ErrInvalid, w.Message)
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
	return sandbox.NewFailure(sandbox.KindInternal, "create machine: %v", err)
}
