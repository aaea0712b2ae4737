package edge

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

const maxKeyLength = 256

// create makes the sandboxes of a request: one result per item, in order.
func (e *Edge) create(ctx context.Context, req *dsecv1.CreateResolvedRequest) ([]*dsecv1.CreateResult, error) {
	count, err := checkCount(req.GetCreate())
	if err != nil {
		return nil, err
	}
	c, end, err := e.beginCreation(ctx, req.KeyId, req.GetCreate().GetIdempotencyKey(), count, createBody(req))
	if err != nil {
		return nil, err
	}
	defer end()
	return e.createAll(ctx, req, c)
}

func checkCount(req *dsecv1.CreateSandboxRequest) (int, error) {
	count := int(req.GetCount())
	if count == 0 {
		count = 1
	}
	if count < 1 || count > maxBatch {
		return 0, invalid("count is %d: want 1 to %d", count, maxBatch)
	}
	return count, nil
}

// beginCreation notes what is asked for; under a key it may have been made before. end must follow. Error:
// ErrAlreadyExists when the key was used with another body.
func (e *Edge) beginCreation(ctx context.Context, keyID, key string, count int, body proto.Message) (c *creation, end func(), err error) {
	if len(key) > maxKeyLength {
		return nil, nil, invalid("idempotency key of %d bytes: want at most %d", len(key), maxKeyLength)
	}
	if key == "" {
		return &creation{ids: make([]string, count)}, func() {}, nil
	}
	hash, err := e.bodyHash(keyID, key, body)
	if err != nil {
		return nil, nil, err
	}
	if c, err = e.keys.begin(ctx, scoped(keyID, key), hash, count); err != nil {
		return nil, nil, err
	}
	return c, func() { e.keys.end(c) }, nil
}

// createAll makes what the creation lacks.
func (e *Edge) createAll(ctx context.Context, req *dsecv1.CreateResolvedRequest, c *creation) ([]*dsecv1.CreateResult, error) {
	if !slices.Contains(c.ids, "") {
		return e.createItems(ctx, nil, req, c)
	}
	from, done, err := e.fromSnapshot(req)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := e.check(req)
	if err != nil {
		return nil, err
	}
	if from != nil {
		p.begin(from)
	}
	if c.busy != nil {
		// Whoever repeats the request gets what is made from now on, even if this caller goes away.
		return e.createItems(context.WithoutCancel(ctx), p, req, c)
	}
	results, err := e.createItems(ctx, p, req, c)
	if ctx.Err() != nil { // nobody will learn of those that were ready before the others
		e.stopUnknown(ctx, results)
	}
	return results, err
}

// stopUnknown stops sandboxes of which their creator, who left no key to ask again with, will never learn.
func (e *Edge) stopUnknown(ctx context.Context, results []*dsecv1.CreateResult) {
	var wg sync.WaitGroup
	for _, r := range results {
		if b, err := e.find(r.GetSandbox().GetId()); err == nil {
			wg.Go(func() { _ = ignoreClosed(b.stop(context.WithoutCancel(ctx), creatorLeft())) })
		}
	}
	wg.Wait()
}

func creatorLeft() *sandbox.Failure {
	return sandbox.NewFailure(sandbox.KindStopped, "its creator went away before it was told of it")
}

// createItems makes what the creation lacks, several at a time.
func (e *Edge) createItems(ctx context.Context, p *plan, req *dsecv1.CreateResolvedRequest, c *creation) ([]*dsecv1.CreateResult, error) {
	results := make([]*dsecv1.CreateResult, len(c.ids))
	var missing []int
	for i, id := range c.ids {
		if id == "" {
			missing = append(missing, i)
		} else if b, err := e.find(id); err == nil {
			if err := b.awaitHooks(ctx); err != nil {
				results[i] = &dsecv1.CreateResult{Error: itemError(creationError(ctx, err))}
				continue
			}
			results[i] = &dsecv1.CreateResult{Sandbox: b.proto()}
		} else {
			results[i] = &dsecv1.CreateResult{Error: itemError(err)}
		}
	}
	if len(missing) == 0 {
		return results, nil
	}
	if err := e.admit.enter(len(missing)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, sandbox.NewFailure(sandbox.KindCreateDeadline, "creation took longer than %v", p.timeout))
	defer cancel()
	next := make(chan int, len(missing))
	for _, i := range missing {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	work := func() {
		for i := range next {
			b, err := e.createOne(ctx, p, req, c, i)
			if err != nil {
				results[i] = &dsecv1.CreateResult{Error: itemError(err)}
				continue
			}
			results[i] = &dsecv1.CreateResult{Sandbox: b.proto()}
		}
	}
	for range min(len(missing), e.cfg.Parallel) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return results, nil
}

// createOne makes one sandbox: record, machine, record again. It was admitted.
func (e *Edge) createOne(ctx context.Context, p *plan, req *dsecv1.CreateResolvedRequest, c *creation, item int) (*box, error) {
	start := time.Now()
	select {
	case e.admit.slots <- struct{}{}:
		defer func() { <-e.admit.slots }()
	case <-ctx.Done():
		e.admit.failed()
		return nil, creationError(ctx, ctx.Err())
	case <-e.closing:
		e.admit.failed()
		return nil, errClosing
	}
	at := e.stages.took("create.wait", start)
	b, err := e.begin(p, req, c, item)
	if err != nil {
		e.admit.failed()
		return nil, err
	}
	at = e.stages.took("create.record", at)
	inst, err := e.launch(ctx, b, p)
	if err != nil {
		e.admit.failed()
		err = creationError(ctx, err)
		e.failCreation(b, err)
		return nil, err
	}
	e.stages.took("create.backend", at)
	if err := e.ready(ctx, b, p, inst); err != nil {
		e.admit.failed()
		err = creationError(ctx, err)
		e.abandon(b, inst, err)
		return nil, err
	}
	e.admit.ready()
	if err := b.onStart(ctx, p.hooks); err != nil {
		return nil, creationError(ctx, err)
	}
	e.stages.took("create.total", start)
	if c.busy != nil {
		e.keys.made(c, item, b.id)
	} else if ctx.Err() != nil { // nobody will learn its id
		_ = ignoreClosed(b.stop(context.WithoutCancel(ctx), creatorLeft()))
		return nil, creationError(ctx, ctx.Err())
	}
	return b, nil
}

// begin records the creation before anything is made. The machine's id is not known yet: the record gets a
// name of its own until then.
func (e *Edge) begin(p *plan, req *dsecv1.CreateResolvedRequest, c *creation, item int) (*box, error) {
	if err := failpoint.Hit("create.before_journal"); err != nil {
		return nil, err
	}
	log, err := record.Create(e.boxDir(newPrefix+rand.Text()), e.cfg.Record)
	if err != nil {
		return nil, notRecorded("create sandbox", err)
	}
	b := e.newBox(p.backend, log)
	b.at = e.cfg.Clock.Wall()
	b.created = &record.Created{
		BootId: e.cfg.Clock.BootID, Spec: p.public, SecretNames: p.secrets, Layers: p.layers, KeyId: req.KeyId,
		IdempotencyKey: req.GetCreate().GetIdempotencyKey(), BodyHash: c.hash, Item: int32(item), Count: int32(len(c.ids)),
		EnvBytes: p.env, Network: p.network, Project: req.Project,
		Resolved: req.Layers, ImageEnv: req.ImageEnv, Snapshots: p.snapshots, NetworkDefaults: req.NetworkDefaults,
		FirstOrder: p.firstOrder,
		Hooks:      int32(len(p.hooks)),
	}
	b.secrets = p.secretValues
	b.entry = &record.Entry{Body: &record.Entry_Created{Created: b.created}}
	if err := log.Append(b.entry); err != nil {
		_ = log.Remove()
		return nil, notRecorded("create sandbox", err)
	}
	if err := failpoint.Hit("create.after_journal"); err != nil {
		_ = log.Remove()
		return nil, err
	}
	log.CountFrom(p.firstOrder)
	e.snapshots.use(p.snapshots)
	return b, nil
}

// newPrefix begins the names of records whose sandbox has no id yet.
const newPrefix = "new-"

func (e *Edge) launch(ctx context.Context, b *box, p *plan) (sandbox.Instance, error) {
	spec := p.machine
	inst, err := p.backend.Create(ctx, &spec)
	if err != nil {
		return nil, err
	}
	b.id = inst.ID()
	if err := failpoint.Hit("create.after_backend"); err != nil {
		return nil, errors.Join(err, inst.Destroy(context.WithoutCancel(ctx)))
	}
	if err := b.log.Rename(e.boxDir(string(b.id))); err != nil {
		return nil, errors.Join(err, inst.Destroy(context.WithoutCancel(ctx)))
	}
	return inst, nil
}

// ready records that the sandbox is ready, and opens it for requests.
func (e *Edge) ready(ctx context.Context, b *box, p *plan, inst sandbox.Instance) error {
	if err := failpoint.Hit("create.before_ready"); err != nil {
		return err
	}
	conn, err := inst.Connect(ctx)
	bare := b.isBare(err)
	if err != nil && !bare {
		return fmt.Errorf("connect to dsec-init: %w", err)
	}
	b.handle = inst.Handle()
	entry := &record.Entry{Body: &record.Entry_Ready{Ready: &record.Ready{Handle: b.handle, TtlNanos: int64(p.ttl), IdleNanos: int64(p.idle), Boot: bootOf(inst), Layers: layersOf(inst),
		Kernel: kernelOf(inst)}}}
	if err := b.log.Append(entry); err != nil {
		closeQuietly(conn)
		return notRecorded("record readiness", err)
	}
	if err := b.log.Sync(); err != nil {
		closeQuietly(conn)
		return err
	}
	if err := failpoint.Hit("create.after_ready"); err != nil {
		closeQuietly(conn)
		return err
	}
	b.mu.Lock()
	b.inst, b.conn, b.bare = inst, conn, bare
	if p.network != nil {
		b.net = reachability{asked: p.network, applied: 1, program: p.program}
	}
	b.readyAt = e.cfg.Clock.Wall()
	e.add(b)
	e.hub.publish(b, b.entry) // before anybody can do something with it
	e.hub.publish(b, entry)
	_ = b.step(readyInput(p.public, p.ttl, p.idle))
	b.mu.Unlock()
	if bare {
		b.watch(inst)
	} else {
		conn.Serve(&receiver{b: b, conn: conn})
		if err := b.inherit(ctx, conn); err != nil {
			return err
		}
	}
	if b.ceilingIsOld() { // it changed after this creation was checked, and before it was among those to be changed
		if _, err := b.takeCeiling(ctx); err != nil {
			return err
		}
	}
	return nil
}

// bootOf tells how a machine came up; "" where its backend does not say.
func bootOf(inst sandbox.Instance) string {
	if b, ok := inst.(sandbox.Booter); ok {
		return b.Boot()
	}
	return ""
}

// layersOf tells how a machine's layers come to it; "" where its backend does not say.
func layersOf(inst sandbox.Instance) string {
	if b, ok := inst.(sandbox.Layered); ok {
		return b.LayersAs()
	}
	return ""
}

// kernelOf tells which kernel of its own a machine runs; "" where its backend does not say.
func kernelOf(inst sandbox.Instance) string {
	if b, ok := inst.(sandbox.Kerneled); ok {
		return b.Kernel()
	}
	return ""
}

// failCreation keeps the record of a creation that made nothing, unless it was refused for want of room.
func (e *Edge) failCreation(b *box, cause error) {
	e.snapshots.unuse(b.created.Snapshots)
	var f *sandbox.Failure
	if !errors.As(cause, &f) || errors.Is(cause, sandbox.ErrExhausted) {
		if err := b.log.Remove(); err != nil {
			e.log.Error("remove the record of a failed creation", "err", err)
		}
		return
	}
	if b.id == "" {
		b.id = sandbox.NewID(e.cfg.ID)
		if err := b.log.Rename(e.boxDir(string(b.id))); err != nil {
			e.log.Error("keep the record of a failed creation", "err", err)
			_ = b.log.Remove()
			return
		}
	}
	b.bury(f)
}

// bury records the end of a sandbox that has no machine, and shows it among the ended ones.
func (b *box) bury(f *sandbox.Failure) {
	b.mu.Lock()
	b.e.add(b)
	b.endedAt = b.e.cfg.Clock.Wall()
	b.e.hub.publish(b, b.entry)
	if err := b.append(&record.Entry{Body: &record.Entry_Ended{Ended: &record.Ended{Failure: failureProto(f)}}}); err != nil {
		b.e.log.Error("record the end", "sandbox", b.id, "err", err)
	}
	_ = b.log.Close()
	_ = b.step(lifecycle.Failed{Failure: f})
	close(b.gone)
	b.mu.Unlock()
	b.e.retire(b)
}

// abandon removes a machine whose creation could not be finished.
func (e *Edge) abandon(b *box, inst sandbox.Instance, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := inst.Destroy(ctx); err != nil {
		e.log.Error("remove a half-made sandbox; the next start will", "sandbox", b.id, "err", err)
	}
	e.failCreation(b, cause)
}

// creationError says of an error during creation whose fault it is.
func creationError(ctx context.Context, err error) error {
	var f *sandbox.Failure
	if ctx.Err() != nil && errors.As(context.Cause(ctx), &f) {
		return fmt.Errorf("create sandbox: %w", f)
	}
	if errors.As(err, &f) || ctx.Err() != nil {
		return fmt.Errorf("create sandbox: %w", err)
	}
	for _, k := range kinds { // the backend's own refusal, for example ErrExhausted or ErrNotFound
		if errors.Is(err, k.err) {
			return fmt.Errorf("create sandbox: %w", err)
		}
	}
	return fmt.Errorf("create sandbox: %w", sandbox.NewFailure(sandbox.KindInternal, "%v", err))
}

// createBody is what a repeated request must have in common with the first: all of it but the key, and not what names
// were resolved to, which may differ.
func createBody(req *dsecv1.CreateResolvedRequest) proto.Message {
	body := proto.Clone(req.GetCreate()).(*dsecv1.CreateSandboxRequest)
	body.IdempotencyKey = ""
	body.Count = max(1, body.Count) // 0 means 1
	return body
}

// bodyHash names what the caller asked for. It is salted, for the body holds secrets.
func (e *Edge) bodyHash(keyID, key string, body proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("hash request: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00", e.cfg.ID, keyID, key)
	h.Write(b)
	return h.Sum(nil), nil
}
