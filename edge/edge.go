package edge

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/sandbox"
)

// Edge owns the sandboxes of one node.
type Edge struct {
	cfg      Config
	log      *slog.Logger
	backends map[sandbox.BackendName]sandbox.Backend
	started  time.Time

	timers *timers
	hub    *hub
	stages *stages
	keys   *keys
	admit  *admission
	tidy   tidy

	snapshots *snapshots

	programs  programs
	ceilings  ceilings
	netEvents chan NetworkEvent
	netLost   atomic.Int64 // network events that were dropped
	faultsMu  sync.Mutex   // taken before mu of a box, by whoever takes new store faults

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	running   sync.WaitGroup // every goroutine of the edge

	mu      sync.RWMutex
	boxes   map[sandbox.ID]*box
	retired []*box // ended ones, in the order of their ends
}

// New makes an edge over the given backends. Call Recover before serving.
func New(cfg Config, backends map[sandbox.BackendName]sandbox.Backend, log *slog.Logger) (*Edge, error) {
	if cfg.ID == "" || cfg.StateDir == "" || len(backends) == 0 {
		return nil, fmt.Errorf("edge: %w: an id, a state directory and a backend are needed", sandbox.ErrInvalid)
	}
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	if _, ok := backends[cfg.DefaultBackend]; !ok && len(backends) == 1 {
		for name := range backends {
			cfg.DefaultBackend = name
		}
	}
	e := &Edge{
		cfg: cfg, log: logger(log), backends: backends, started: cfg.Clock.Wall(),
		hub: newHub(), stages: newStages(), closing: make(chan struct{}),
		boxes: map[sandbox.ID]*box{}, netEvents: make(chan NetworkEvent, maxNetworkEvents),
	}
	e.programs.compiler = cfg.Network
	e.admit = newAdmission(&e.cfg)
	e.keys = newKeys(filepath.Join(cfg.StateDir, "keys"), cfg.Clock.Wall)
	e.snapshots = newSnapshots(e)
	e.timers = newTimers(cfg.Clock.Boot, (*box).fire)
	if err := os.MkdirAll(e.recordDir(), 0o700); err != nil {
		return nil, fmt.Errorf("edge: make state directory: %w", err)
	}
	e.spawn(func() { e.timers.run(e.closing) })
	e.spawn(e.followNetwork)
	return e, nil
}

func (e *Edge) boot() lifecycle.Now { return e.cfg.Clock.Boot() }

func (e *Edge) recordDir() string { return filepath.Join(e.cfg.StateDir, "sandboxes") }

func (e *Edge) boxDir(name string) string { return filepath.Join(e.recordDir(), name) }

// spawn runs fn in a goroutine that Close waits for; not at all once Close has begun.
func (e *Edge) spawn(fn func()) bool {
	e.mu.RLock() // Close excludes it
	defer e.mu.RUnlock()
	select {
	case <-e.closing:
		return false
	default:
	}
	e.running.Go(fn)
	return true
}

// Close ends the edge, not its sandboxes: they and their commands go on and the next edge adopts them. It
// waits for the edge's goroutines until ctx ends.
func (e *Edge) Close(ctx context.Context) error {
	e.closeOnce.Do(func() {
		e.mu.Lock()
		close(e.closing)
		e.mu.Unlock()
	})
	e.timers.poke()
	for _, b := range e.all() {
		b.detach()
	}
	done := make(chan struct{})
	go func() {
		e.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("edge: close: something still runs: %w", ctx.Err())
	}
	for _, b := range e.all() {
		_ = b.log.Close()
	}
	return e.keys.close()
}

// detach closes the channel; dsec-init keeps what happens from now on for the next edge.
func (b *box) detach() {
	b.mu.Lock()
	conn := b.conn
	b.conn = nil
	b.mu.Unlock()
	closeQuietly(conn)
}

// StopAll ends every sandbox and waits until they are gone.
func (e *Edge) StopAll(ctx context.Context) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, b := range e.all() {
		wg.Go(func() {
			if err := b.stop(ctx, sandbox.NewFailure(sandbox.KindStopped, "the node was shut down")); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return first
}

// all returns every sandbox that is known, ended ones too.
func (e *Edge) all() []*box {
	e.mu.RLock()
	defer e.mu.RUnlock()
	list := make([]*box, 0, len(e.boxes))
	for _, b := range e.boxes {
		list = append(list, b)
	}
	return list
}

func (e *Edge) add(b *box) {
	e.mu.Lock()
	e.boxes[b.id] = b
	e.mu.Unlock()
}

// retire keeps an ended sandbox for its retention time; beyond the bound the oldest go at once.
func (e *Edge) retire(b *box) {
	e.mu.Lock()
	// By when they ended: callers know of an end before it comes here, and the next one may overtake it.
	at := len(e.retired)
	for at > 0 && e.retired[at-1].endedAt.After(b.endedAt) {
		at--
	}
	e.retired = slices.Insert(e.retired, at, b)
	e.mu.Unlock()
	e.trimRetired()
}

func (e *Edge) trimRetired() {
	e.mu.RLock()
	var over []*box
	if n := len(e.retired) - e.cfg.RetainMax; n > 0 {
		over = slices.Clone(e.retired[:n])
	}
	e.mu.RUnlock()
	for _, b := range over {
		e.drop(b)
	}
}

// drop forgets an ended sandbox.
func (e *Edge) drop(b *box) {
	e.mu.Lock()
	known := e.boxes[b.id] == b
	delete(e.boxes, b.id)
	if i := slices.Index(e.retired, b); i >= 0 {
		e.retired = slices.Delete(e.retired, i, i+1)
	}
	e.mu.Unlock()
	if !known {
		return
	}
	if err := e.keys.outlive(b.created, string(b.id)); err != nil {
		e.log.Error("keep the idempotency key", "sandbox", b.id, "err", err)
		return
	}
	if err := b.log.Remove(); err != nil {
		e.log.Error("forget sandbox", "sandbox", b.id, "err", err)
	}
}
