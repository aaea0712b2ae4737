package edge

import (
	"fmt"
	"sync"

	"github.com/opendsec/dsec/sandbox"
)

// admission decides whether the node has room, before anything is made, and bounds what waits.
type admission struct {
	cfg   *Config
	slots chan struct{} // creations at work

	mu       sync.Mutex
	live     int // ready ones
	creating int // admitted and not ready yet
}

func newAdmission(cfg *Config) *admission {
	return &admission{cfg: cfg, slots: make(chan struct{}, cfg.Parallel)}
}

// enter admits n more sandboxes, all or none. Each must be ended by ready or gone. Error: ErrExhausted.
func (a *admission) enter(n int) error {
	available, err := a.cfg.Clock.AvailableMemory()
	if err != nil {
		return fmt.Errorf("admission: %w: %w", err, sandbox.ErrUnavailable)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if total := a.live + a.creating + n; total > a.cfg.MaxSandboxes {
		return fmt.Errorf("%d more sandboxes: %w: this node holds %d of at most %d; stop some or use another node",
			n, sandbox.ErrExhausted, a.live+a.creating, a.cfg.MaxSandboxes)
	}
	if a.creating+n > a.cfg.MaxWaiting {
		return fmt.Errorf("%d more sandboxes: %w: %d creations are waiting on this node, at most %d may; try again later",
			n, sandbox.ErrExhausted, a.creating, a.cfg.MaxWaiting)
	}
	need := int64(a.creating+n) * a.cfg.ReserveMemory
	if available-need < a.cfg.MinFreeMemory {
		return fmt.Errorf("%d more sandboxes: %w: the node has %d MiB of memory available and keeps %d MiB free; stop some or use another node",
			n, sandbox.ErrExhausted, available>>20, a.cfg.MinFreeMemory>>20)
	}
	a.creating += n
	return nil
}

// adopt counts a sandbox that an earlier process made.
func (a *admission) adopt() {
	a.mu.Lock()
	a.live++
	a.mu.Unlock()
}

// ready ends a creation well, failed badly; gone ends a ready sandbox.
func (a *admission) ready() {
	a.mu.Lock()
	a.creating--
	a.live++
	a.mu.Unlock()
}

func (a *admission) failed() {
	a.mu.Lock()
	a.creating--
	a.mu.Unlock()
}

func (a *admission) gone() {
	a.mu.Lock()
	a.live--
	a.mu.Unlock()
}

func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.live
}
