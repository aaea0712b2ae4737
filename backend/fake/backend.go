package fake

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Options of a Backend.
type Options struct {
	Edge sandbox.EdgeID // encoded in the ids
	// CreateTime is how long a creation takes.
	CreateTime time.Duration
	// Fail, when set, is asked before each creation; what it returns fails it.
	Fail func(spec *sandbox.Spec) error
	// Hook, when set, is asked before "recover", "connect", "pause", "resume" and "destroy"; what it returns
	// fails them.
	Hook func(operation string, id sandbox.ID) error
	// Wrap, when set, stands between an edge and the channel of a machine, for example to forge what it says.
	Wrap func(id sandbox.ID, c net.Conn) net.Conn
}

func (b *Backend) hook(operation string, id sandbox.ID) error {
	if b.opt.Hook == nil {
		return nil
	}
	return b.opt.Hook(operation, id)
}

// Backend makes machines and is the world they live in.
type Backend struct {
	opt Options

	mu       sync.Mutex
	machines map[sandbox.ID]*Machine
}

// New makes an empty world.
func New(opt Options) *Backend { return &Backend{opt: opt, machines: map[sandbox.ID]*Machine{}} }

var _ sandbox.Backend = (*Backend)(nil)

// Name implements sandbox.Backend.
func (b *Backend) Name() sandbox.BackendName { return sandbox.BackendFake }

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Pause: true, Ports: true, Saves: true}
}

// Create implements sandbox.Backend.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if b.opt.Fail != nil {
		if err := b.opt.Fail(spec); err != nil {
			return nil, err
		}
	}
	if b.opt.CreateTime > 0 {
		select {
		case <-time.After(b.opt.CreateTime):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	id := spec.ID
	if id == "" {
		id = sandbox.NewID(b.opt.Edge)
	}
	m := newMachine(b, id, spec)
	b.mu.Lock()
	b.machines[id] = m
	b.mu.Unlock()
	return m, nil
}

// Recover implements sandbox.Backend.
func (b *Backend) Recover(_ context.Context, id sandbox.ID, _ []byte) (sandbox.Instance, error) {
	if err := b.hook("recover", id); err != nil {
		return nil, err
	}
	if m := b.Machine(id); m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("fake machine %s: %w", id, sandbox.ErrNotFound)
}

// Sweep implements sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context, keep func(sandbox.ID) bool) ([]string, error) {
	var gone []string
	for _, m := range b.Machines() {
		if !keep(m.id) {
			gone = append(gone, "machine "+string(m.id))
			if err := m.Destroy(ctx); err != nil {
				return gone, err
			}
		}
	}
	return gone, nil
}

// Warm implements sandbox.Backend.
func (b *Backend) Warm() int { return 0 }

// Close implements sandbox.Backend.
func (b *Backend) Close(context.Context) error { return nil }

// Machine finds a machine; nil if there is none.
func (b *Backend) Machine(id sandbox.ID) *Machine {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machines[id]
}

// Machines returns all.
func (b *Backend) Machines() []*Machine {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*Machine, 0, len(b.machines))
	for _, m := range b.machines {
		list = append(list, m)
	}
	return list
}
