package edge

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// snapshotTimeout bounds the taking of one snapshot; most of it is writing what was dirty.
const snapshotTimeout = 5 * time.Minute

// snapshotOf says what a snapshot is for.
type snapshotOf struct {
	labels map[string]string
	kept   bool // until it is deleted; else as long as something needs it
	pack   bool // to be packed: generations become one layer
}

// checkDepth tells whether what is made of a sandbox still fits into a stack: a sandbox of its snapshot, with each
// generation a layer of its own, or one of its pack.
func checkDepth(c *record.Created, pack bool) error {
	switch layers := len(c.Layers) + 1; {
	case layers > maxLayers: // a pack would not help
		return fmt.Errorf("%w: what is made of it would have more than %d layers; begin from fewer (dsec layer collapse)", sandbox.ErrExhausted, maxLayers)
	case !pack && layers+len(c.Snapshots) > maxLayers:
		return fmt.Errorf("%w: what is made of it would have more than %d layers; pack it, and go on from the pack", sandbox.ErrExhausted, maxLayers)
	}
	return nil
}

// take keeps the disk of a sandbox as it is now. It is held until snapshots.release.
func (b *box) take(ctx context.Context, of snapshotOf) (*snapshot, error) {
	backend, err := snapshotter(b.backend)
	if err != nil {
		return nil, err
	}
	c, parents, memory := b.created, b.created.Snapshots, b.backend.Capabilities().Memory
	if memory {
		parents = nil // each stands alone
	}
	if !memory || of.pack {
		if err := checkDepth(c, of.pack); err != nil {
			return nil, fmt.Errorf("snapshot of sandbox %s: %w", b.id, err)
		}
	}
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	defer b.unlock()
	b.mu.Lock()
	state, inst := b.machine.State(), b.inst
	switch {
	case state == sandbox.StateStopping || state == sandbox.StateStopped:
		err = b.endedError()
	case state == sandbox.StateCreating:
		err = fmt.Errorf("sandbox %s is still being created: %w", b.id, sandbox.ErrFailedPrecondition)
	case inst == nil:
		err = fmt.Errorf("sandbox %s cannot be reached at the moment, try again: %w", b.id, sandbox.ErrUnavailable)
	}
	if err == nil && b.step(lifecycle.Enter{}) == nil { // its idle time does not run out meanwhile
		defer b.leave()
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	x, err := b.e.snapshots.add(&record.Snapshot{
		BootId: b.e.cfg.Clock.BootID, Created: c,
		Public: &dsecv1.Snapshot{
			SandboxId: string(b.id), Labels: of.labels, CreatedAt: stamp(b.e.cfg.Clock.Wall()),
			Layers: c.Layers, Parents: parents, Kept: of.kept,
		},
	}, backend)
	if err != nil {
		return nil, err
	}
	err = b.fill(ctx, x, inst, state == sandbox.StatePaused)
	if state == sandbox.StatePaused { // it may have been put away, and is not any more
		b.mu.Lock()
		b.saveLater(0)
		b.mu.Unlock()
	}
	if err != nil {
		b.e.snapshots.release(x)
		return nil, err
	}
	return x, nil
}

// fill makes the snapshot of a record. The work is not cut short when the caller goes away: half of it is frozen.
func (b *box) fill(ctx context.Context, x *snapshot, inst sandbox.Instance, frozen bool) error {
	if err := failpoint.Hit("snapshot.recorded"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTimeout)
	defer cancel()
	cost, err := x.backend.Snapshot(ctx, inst, x.id, frozen)
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", b.id, err)
	}
	b.e.stages.add("snapshot.flush", cost.Flush)
	b.e.stages.add("snapshot.frozen", cost.Frozen)
	s := b.e.snapshots
	s.mu.Lock()
	x.rec.Ready = true
	kept := "its disk was kept as "
	if b.backend.Capabilities().Memory {
		x.rec.NextOrder = b.log.NextOrder()
		kept = "its memory and its disk were kept as "
	}
	x.rec.Public.Cost = &dsecv1.SnapshotCost{
		FlushUsec: cost.Flush.Microseconds(), FrozenUsec: cost.Frozen.Microseconds(),
		FreezeUsec: cost.Freeze.Microseconds(), TakeUsec: cost.Take.Microseconds(),
	}
	x.rec.Public.SizeBytes = cost.Bytes
	if err = s.save(x); err != nil {
		x.rec.Ready = false
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.append(&record.Entry{Body: &record.Entry_Note{Note: &record.Note{
		Type: "snapshot_taken", Message: kept + string(x.id),
		Attributes: map[string]string{"snapshot": string(x.id), "frozen_usec": strconv.FormatInt(cost.Frozen.Microseconds(), 10)},
	}}})
}

// chain names a snapshot and those below it, bottom to top.
func (x *snapshot) chain() []string {
	return append(append([]string(nil), x.rec.Public.Parents...), string(x.id))
}

// fromSnapshot fills in what a creation from a snapshot is made of, and returns that. It does nothing for others: nil.
func (e *Edge) fromSnapshot(req *dsecv1.CreateResolvedRequest) (x *snapshot, done func(), err error) {
	env := req.GetCreate().GetSpec().GetEnvironment()
	if env.GetSnapshot() == "" {
		return nil, func() {}, nil
	}
	if proto.Size(env) != proto.Size(&dsecv1.Environment{Snapshot: env.Snapshot}) || len(req.Layers) > 0 {
		return nil, nil, invalid("environment: a snapshot stands alone: leave out image, base, workspace and toolkits")
	}
	if x, err = e.snapshots.find(env.Snapshot); err != nil {
		return nil, nil, err
	}
	c := x.rec.Created
	if c.Spec.GetBackend() != dsecv1.Backend_BACKEND_UNSPECIFIED && req.Create.Spec.Backend != dsecv1.Backend_BACKEND_UNSPECIFIED && c.Spec.Backend != req.Create.Spec.Backend {
		e.snapshots.release(x)
		return nil, nil, invalid("snapshot %s is of a sandbox of another backend: leave the backend out, or say %s", x.id, backendNames[c.Spec.Backend])
	}
	if x.rec.NextOrder == 0 && req.Create.Spec.Backend == dsecv1.Backend_BACKEND_UNSPECIFIED {
		req.Create = proto.Clone(req.Create).(*dsecv1.CreateSandboxRequest)
		req.Create.Spec.Backend = c.Spec.Backend
	}
	req.Layers, req.ImageEnv, req.ImageUser, req.ImageWorkdir = c.Resolved, c.ImageEnv, c.Spec.User, c.Spec.Workdir
	req.NetworkDefaults = c.NetworkDefaults
	if x.rec.NextOrder > 0 { // what goes on in it has the size that it had
		spec := proto.Clone(req.Create.Spec).(*dsecv1.SandboxSpec)
		spec.Limits = underLimits(spec.Limits, c.Spec.Limits)
		req.Create = proto.Clone(req.Create).(*dsecv1.CreateSandboxRequest)
		spec.Backend, req.Create.Spec = c.Spec.Backend, spec
	}
	return x, func() { e.snapshots.release(x) }, nil
}
