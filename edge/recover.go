package edge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

const (
	recoverParallel = 16
	recoverTimeout  = 20 * time.Second
	recoverRetry    = 5 * time.Second
)

// Recover takes over what an earlier process left: sandboxes that live go on, with their commands; ended ones
// are listed until their time is over; half-made ones are removed. Call it once, before serving.
func (e *Edge) Recover(ctx context.Context) error {
	if err := e.keys.load(); err != nil {
		return err
	}
	if err := e.snapshots.load(); err != nil {
		return fmt.Errorf("read the records of snapshots: %w", err)
	}
	entries, err := os.ReadDir(e.recordDir())
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	unreadable := &idSet{m: map[sandbox.ID]struct{}{}}
	work := make(chan string)
	var wg sync.WaitGroup
	for range recoverParallel {
		wg.Go(func() {
			for name := range work {
				if err := e.recoverOne(ctx, name); err != nil {
					e.log.Error("read the record of a sandbox; it is left alone", "sandbox", name, "err", err)
					unreadable.add(sandbox.ID(name))
				}
			}
		})
	}
	for _, d := range entries {
		work <- d.Name()
	}
	close(work)
	wg.Wait()
	e.mu.Lock()
	slices.SortFunc(e.retired, func(x, y *box) int { return x.endedAt.Compare(y.endedAt) }) // ended: it does not change
	e.mu.Unlock()
	e.trimRetired()
	keep := func(id sandbox.ID) bool {
		if unreadable.has(id) {
			return true // unknown is not empty
		}
		b, err := e.find(string(id))
		return err == nil && b.alive()
	}
	for name, backend := range e.backends {
		removed, err := backend.Sweep(ctx, keep)
		if err != nil {
			return fmt.Errorf("remove what earlier %s sandboxes left: %w", name, err)
		}
		for _, what := range removed {
			e.log.Info("removed what an earlier process left", "backend", name, "what", what)
		}
	}
	if len(unreadable.m) == 0 { // else one of them may need what looks unneeded
		e.snapshots.settle()
	}
	if e.cfg.NewStoreFaults != nil { // those of the past are for the sandboxes that were found
		e.spawn(e.followFaults)
	}
	return nil
}

type idSet struct {
	mu sync.Mutex
	m  map[sandbox.ID]struct{}
}

func (s *idSet) add(id sandbox.ID) {
	s.mu.Lock()
	s.m[id] = struct{}{}
	s.mu.Unlock()
}

func (s *idSet) has(id sandbox.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[id]
	return ok
}

// alive tells whether the sandbox has a machine, or may have one.
func (b *box) alive() bool {
	s := b.state()
	return s == sandbox.StateRunning || s == sandbox.StatePaused
}

// recoverOne reads one record and takes up the sandbox where it was.
func (e *Edge) recoverOne(ctx context.Context, name string) error {
	h := &history{commands: map[int64]*commandHistory{}, sessions: map[string]*session{}}
	log, torn, err := record.Open(e.boxDir(name), e.cfg.Record, h.visit)
	if errors.Is(err, record.ErrDamaged) || errors.Is(err, os.ErrNotExist) {
		return e.recoverDamaged(name, h, err)
	}
	if err != nil {
		return err
	}
	if torn > 0 {
		e.log.Warn("cut a torn end off the record", "sandbox", name, "bytes", torn)
	}
	if h.created == nil { // killed between the directory and its first entry
		if !strings.HasPrefix(name, newPrefix) { // it got its name after that
			_ = log.Close()
			return e.recoverDamaged(name, h, record.ErrDamaged)
		}
		return log.Remove()
	}
	backend := e.backends[backendNames[h.created.Spec.GetBackend()]]
	if backend == nil {
		_ = log.Close()
		return fmt.Errorf("its backend %s is not configured", h.created.Spec.GetBackend())
	}
	b := e.newBox(backend, log)
	b.created, b.entry, b.at = h.created, h.entry, h.at
	if strings.HasPrefix(name, newPrefix) {
		b.id = sandbox.NewID(e.cfg.ID)
		if err := log.Rename(e.boxDir(string(b.id))); err != nil {
			return err
		}
	} else if b.id, err = sandbox.ParseID(name); err != nil {
		_ = log.Close()
		return err
	}
	h.restore(b)
	return e.takeUp(ctx, b, h)
}

// recoverDamaged ends a sandbox whose record cannot be trusted: it might run a command twice. Its machine is swept.
func (e *Edge) recoverDamaged(name string, h *history, cause error) error {
	dir := e.boxDir(name)
	if strings.HasPrefix(name, newPrefix) {
		return os.RemoveAll(dir)
	}
	id, err := sandbox.ParseID(name)
	if err != nil {
		return err
	}
	log, err := record.Renew(dir, e.cfg.Record)
	if err != nil {
		return err
	}
	e.log.Error("the record of a sandbox is damaged; it is ended", "sandbox", id, "err", cause)
	b := e.newBox(nil, log)
	b.id, b.created, b.at = id, h.created, h.at
	if b.created == nil {
		b.created, b.at = &record.Created{BootId: e.cfg.Clock.BootID, Spec: &dsecv1.SandboxSpec{Backend: backendProto(e.cfg.DefaultBackend)}}, e.cfg.Clock.Wall()
	}
	b.entry = &record.Entry{Body: &record.Entry_Created{Created: b.created}}
	if err := log.Append(b.entry); err != nil {
		return err
	}
	e.restoreKey(b)
	f := sandbox.NewFailure(sandbox.KindInternal, "its record on the node was damaged")
	f.Evidence = clip(cause.Error(), maxEvidence)
	b.bury(f)
	return nil
}

// takeUp continues with a sandbox whose record was read.
func (e *Edge) takeUp(ctx context.Context, b *box, h *history) error {
	if h.ready {
		e.restoreKey(b)
	}
	if h.ready && !h.ended {
		e.snapshots.use(h.created.Snapshots)
	}
	switch {
	case !h.readyOrEnded():
		b.bury(sandbox.NewFailure(sandbox.KindInternal, "its creation was interrupted by a restart of the edge"))
	case h.ended:
		_ = b.log.Close()
		e.add(b)
		close(b.gone)
		b.mu.Lock()
		b.arm()
		b.mu.Unlock()
		e.mu.Lock()
		e.retired = append(e.retired, b) // put in order when all are read
		e.mu.Unlock()
	case b.machine.State() == sandbox.StateStopping:
		e.add(b)
		e.admit.adopt()
		b.finish(b.machine.Failure())
	case h.created.BootId != e.cfg.Clock.BootID:
		e.endLost(b, sandbox.NewFailure(sandbox.KindNodeRestarted, "the node was restarted"))
	default:
		if h.created.Hooks > 0 && !h.hooked {
			b.hooking = make(chan struct{}) // before anybody can find it
		}
		b.mu.Lock()
		e.add(b)
		e.admit.adopt()
		b.mu.Unlock()
		b.reach(ctx)
		if b.hooking != nil {
			e.spawn(b.resumeHooks)
		}
	}
	return nil
}

// restoreKey notes the idempotency key of a sandbox that was made.
func (e *Edge) restoreKey(b *box) {
	if c := b.created; c.IdempotencyKey != "" {
		e.keys.restore(kept{
			Key: scoped(c.KeyId, c.IdempotencyKey), Hash: c.BodyHash, At: b.at,
			Item: int(c.Item), Count: int(c.Count), ID: string(b.id),
		})
	}
}

// endLost ends a sandbox whose machine is gone.
func (e *Edge) endLost(b *box, f *sandbox.Failure) {
	e.add(b)
	e.admit.adopt()
	b.mu.Lock()
	b.machine.Apply(lifecycle.Stop{Failure: f}, 0) // times of another boot mean nothing
	b.beginStop(f)
	b.mu.Unlock()
	<-b.gone
}

// reach finds the machine of a sandbox that should live and connects to it. A machine that is gone ends the
// sandbox; one that cannot be told to be gone is tried again later.
func (b *box) reach(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	inst, err := b.backend.Recover(ctx, b.id, b.handle)
	if err != nil {
		b.unreachable(err)
		return
	}
	b.mu.Lock()
	b.inst = inst
	b.mu.Unlock()
	b.restoreNetwork(ctx, inst)
	b.join(inst)
}

// join connects to an instance that was found, and makes it what the record says.
func (b *box) join(inst sandbox.Instance) {
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	if err := b.lock(ctx); err != nil { // what is settled below must not change meanwhile
		b.unanswered(inst, err)
		return
	}
	defer b.unlock()
	if s := saver(inst); s != nil && s.Saved() && b.state() == sandbox.StatePaused {
		b.mu.Lock()
		b.ungrouped = true // whoever resumes it looks for them
		_ = b.step(lifecycle.Tick{})
		b.mu.Unlock()
		b.watchEnd(inst)
		return
	}
	if err := b.openGroups(ctx, inst); err != nil {
		b.unanswered(inst, err)
		return
	}
	b.sweepGroups(inst)
	b.mu.Lock()
	paused := b.machine.State() == sandbox.StatePaused
	b.mu.Unlock()
	opened, err := b.link(ctx, inst)
	if b.isBare(err) {
		b.mu.Lock()
		b.bare = true
		b.mu.Unlock()
		b.watch(inst)
		b.settle(ctx, inst, paused)
		return
	}
	if err != nil {
		b.unanswered(inst, err)
		return
	}
	b.mu.Lock()
	b.silentSince = 0
	b.mu.Unlock()
	if opened { // else by who wanted it since, and has settled it
		b.settle(ctx, inst, paused)
	}
}

// openGroups finds the control groups of the commands and sessions that run. Error: the machine does not answer in time.
func (b *box) openGroups(ctx context.Context, inst sandbox.Instance) error {
	if !b.backend.Capabilities().CommandGroup {
		return nil
	}
	b.mu.Lock()
	var sessions []*session
	for _, s := range b.sessions {
		if s.end == nil && s.group == nil {
			sessions = append(sessions, s)
		}
	}
	var commands []*command
	for _, c := range b.commands {
		if c.session == nil {
			commands = append(commands, c)
		}
	}
	b.mu.Unlock()
	open := func(name string) (sandbox.Group, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		g, err := inst.OpenGroup(name)
		if err != nil && !late(err) {
			b.e.log.Debug("find a control group", "sandbox", b.id, "group", name, "err", err)
			return nil, nil
		}
		return g, err
	}
	for _, s := range sessions {
		g, err := open(s.groupName())
		if err != nil {
			return err
		}
		b.mu.Lock()
		if g != nil {
			s.group = g
		}
		b.mu.Unlock()
	}
	for _, c := range commands {
		g, err := open(c.id)
		if err != nil {
			return err
		}
		c.mu.Lock()
		if g != nil {
			c.group = g
		}
		c.mu.Unlock()
	}
	return nil
}

// sweepGroups removes the control groups of commands that ended before the restart; those in which a process lives on
// are kept as they would have been without it.
func (b *box) sweepGroups(inst sandbox.Instance) {
	l, ok := inst.(sandbox.GroupLister)
	if !ok {
		return
	}
	names, err := l.Groups()
	if err != nil {
		b.e.log.Warn("list the control groups of a recovered sandbox", "sandbox", b.id, "err", err)
		return
	}
	b.mu.Lock()
	used := map[string]bool{}
	for _, c := range b.commands {
		used[c.id] = true
	}
	for _, s := range b.sessions {
		used[s.groupName()] = true
	}
	b.mu.Unlock()
	for _, name := range names {
		if used[name] {
			continue
		}
		if g, err := inst.OpenGroup(name); err == nil {
			b.clearGroup(g, false)
		}
	}
}

// settle makes the machine what the record says: an edge may die between a freeze and its record.
func (b *box) settle(ctx context.Context, inst sandbox.Instance, paused bool) {
	if b.backend.Capabilities().Pause {
		do := inst.Resume
		if paused {
			do = inst.Pause
			b.holdTimeouts(ctx, true) // first: a machine that stands still does not answer
		}
		if err := do(ctx); err != nil {
			b.e.log.Error("bring a recovered sandbox to its state", "sandbox", b.id, "paused", paused, "err", err)
		}
		if !paused {
			b.holdTimeouts(ctx, false)
		}
	}
	b.mu.Lock()
	if paused {
		b.saveLater(0)
	}
	_ = b.step(lifecycle.Tick{}) // what fell due meanwhile
	b.mu.Unlock()
}

func (b *box) unreachable(err error) {
	var f *sandbox.Failure
	switch {
	case errors.As(err, &f):
	case errors.Is(err, sandbox.ErrNotFound):
		f = sandbox.NewFailure(sandbox.KindNodeLost, "its machine was gone when the edge came back")
		f.Evidence = clip(err.Error(), maxEvidence)
	default:
		b.e.log.Error("recover a sandbox, will try again", "sandbox", b.id, "err", err)
		b.mu.Lock()
		b.retry = b.e.boot() + recoverRetry
		b.arm()
		b.mu.Unlock()
		return
	}
	b.mu.Lock()
	_ = b.step(lifecycle.Stop{Failure: f})
	b.mu.Unlock()
	select {
	case <-b.gone:
	case <-b.e.closing:
	}
}

func (b *box) recoverAgain() {
	if b.alive() {
		b.reach(context.Background())
	}
}
