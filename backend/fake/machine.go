package fake

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/sandbox"
)

// Machine is one fake sandbox: its dsec-init and what runs in it.
type Machine struct {
	b    *Backend
	id   sandbox.ID
	spec sandbox.Spec
	born time.Time
	done chan struct{}

	mu       sync.Mutex
	thawed   sync.Cond // signalled when paused or dead changes
	paused   bool
	saved    bool
	dead     bool
	end      *sandbox.Failure
	epoch    uint64
	peer     *peer
	commands map[string]*process
	sessions map[string]*shellState
	files    *files
	pids     int32
	ooms     int64
}

func newMachine(b *Backend, id sandbox.ID, spec *sandbox.Spec) *Machine {
	m := &Machine{
		b: b, id: id, spec: *spec, born: time.Now(), done: make(chan struct{}),
		commands: map[string]*process{}, sessions: map[string]*shellState{}, files: newFiles(), pids: 1,
	}
	m.thawed.L = &m.mu
	return m
}

var _ sandbox.Instance = (*Machine)(nil)

// ID implements sandbox.Instance.
func (m *Machine) ID() sandbox.ID { return m.id }

// Handle implements sandbox.Instance.
func (m *Machine) Handle() []byte { return []byte(m.id) }

// Connect implements sandbox.Instance.
func (m *Machine) Connect(ctx context.Context) (*aether.Conn, error) {
	if err := m.b.hook("connect", m.id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return nil, fmt.Errorf("fake machine %s has ended: %w", m.id, sandbox.ErrUnavailable)
	}
	m.saved = false
	m.epoch++
	epoch, old := m.epoch, m.peer
	ours, theirs := net.Pipe()
	p := &peer{m: m, nc: ours, streams: map[uint32]*stream{}}
	m.peer = p
	if old != nil {
		old.close()
	}
	for _, c := range m.commands {
		c.detach()
	}
	m.mu.Unlock()
	go p.serve() // ends when either side closes the pipe
	if m.b.opt.Wrap != nil {
		theirs = m.b.opt.Wrap(m.id, theirs)
	}
	return aether.Open(ctx, theirs, epoch)
}

// Group implements sandbox.Instance.
func (m *Machine) Group(context.Context, string) (sandbox.Group, error) {
	return nil, fmt.Errorf("control groups of fake machines: %w", sandbox.ErrUnsupported)
}

// OpenGroup implements sandbox.Instance.
func (m *Machine) OpenGroup(string) (sandbox.Group, error) {
	return nil, fmt.Errorf("control groups of fake machines: %w", sandbox.ErrUnsupported)
}

// Pause implements sandbox.Instance.
func (m *Machine) Pause(context.Context) error { return m.setPaused("pause", true) }

// Resume implements sandbox.Instance.
func (m *Machine) Resume(context.Context) error { return m.setPaused("resume", false) }

func (m *Machine) setPaused(operation string, v bool) error {
	if err := m.b.hook(operation, m.id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return fmt.Errorf("fake machine %s has ended: %w", m.id, sandbox.ErrUnavailable)
	}
	m.paused = v
	m.saved = m.saved && v
	m.thawed.Broadcast()
	return nil
}

// Paused tells whether the machine is frozen.
func (m *Machine) Paused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused
}

// awaitThaw holds a process up while the machine is frozen; false = the machine has ended.
func (m *Machine) awaitThaw() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.paused && !m.dead {
		m.thawed.Wait()
	}
	return !m.dead
}

// Stats implements sandbox.Instance.
func (m *Machine) Stats(context.Context) (sandbox.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.spec.Limits
	return sandbox.Stats{
		At: time.Now(), CPUUsage: time.Since(m.born) / 1000, MemoryBytes: 1 << 20, MemoryPeakBytes: 1 << 20,
		MemoryLimitBytes: l.MemoryBytes, DiskBytes: m.files.size(), DiskLimitBytes: l.DiskBytes,
		Pids: int64(len(m.commands)) + 1, PidsLimit: l.Pids, OOMKills: m.ooms,
	}, nil
}

// Done implements sandbox.Instance.
func (m *Machine) Done() <-chan struct{} { return m.done }

// End implements sandbox.Instance.
func (m *Machine) End() *sandbox.Failure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end
}

// Destroy implements sandbox.Instance.
func (m *Machine) Destroy(context.Context) error {
	if err := m.b.hook("destroy", m.id); err != nil {
		return err
	}
	m.finish(nil)
	m.b.mu.Lock()
	if m.b.machines[m.id] == m {
		delete(m.b.machines, m.id)
	}
	m.b.mu.Unlock()
	return nil
}

// Kill ends the machine's dsec-init, as a program inside that succeeds in killing it would.
func (m *Machine) Kill() {
	m.finish(sandbox.NewFailure(sandbox.KindInitKilled, "its dsec-init was killed by signal 9"))
}

func (m *Machine) finish(f *sandbox.Failure) {
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return
	}
	m.dead, m.end = true, f
	p := m.peer
	commands := m.commands
	m.commands = map[string]*process{}
	m.thawed.Broadcast()
	close(m.done)
	m.mu.Unlock()
	if p != nil {
		p.close()
	}
	for _, c := range commands {
		c.kill(9, true)
	}
}
