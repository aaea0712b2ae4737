package fullvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/microvm/qmp"
	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// askTimeout bounds what a running machine is asked, where the caller has no sooner deadline.
const askTimeout = 20 * time.Second

// instance is one machine; it implements sandbox.Instance and sandbox.Screen.
type instance struct {
	d      *Driver
	id     sandbox.ID
	limits record
	groups *cgroup.Sandbox
	words  *qemu.Words
	done   chan struct{}

	// screen is held by whoever uses the screen: one at a time.
	screen chan struct{}

	connecting sync.Mutex // of Connect: the channel has one user at a time
	env        []string   // of the spec; nil = another process made the machine

	logMu sync.Mutex
	fw    []byte // what the firmware has said; QEMU hands it out once

	mu        sync.Mutex
	pidfd     *os.File
	monitor   *qmp.Conn
	image     *image // nil = another process mounted it
	agent     agent
	end       *sandbox.Failure
	ended     bool
	destroyed bool
}

var _ sandbox.Screen = (*instance)(nil)

// newInstance makes an instance of a QEMU that runs; from here on its end is the instance's.
func (d *Driver) newInstance(r *record, pidfd *os.File) (*instance, error) {
	groups, err := d.groups(r.ID)
	if err != nil {
		return nil, err
	}
	i := &instance{d: d, id: r.ID, limits: *r, groups: groups, done: make(chan struct{}), screen: make(chan struct{}, 1), pidfd: pidfd,
		agent: agent{up: make(chan struct{})}}
	if i.words, err = qemu.OpenWords(d.dir(r.ID)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.instances[i.id] = i
	d.mu.Unlock()
	if err := d.watch.Add(pidfd, func() { go i.exited() }); err != nil {
		d.log.Error("cannot watch a machine", "err", err)
		go i.exited()
	}
	return i, nil
}

// attach connects to the monitor and to the agent's port. A machine that has ended already is found out.
func (i *instance) attach(ctx context.Context) error {
	if err := i.attachMonitor(ctx); err != nil {
		return err
	}
	status, err := i.status(ctx)
	if err != nil {
		return err
	}
	if qemu.Over(status) {
		i.stopped(ctx)
		return nil
	}
	return i.attachAgent(ctx)
}

func (i *instance) attachMonitor(ctx context.Context) error {
	nc, err := qemu.Await(ctx, i.d.dir(i.id), monitorName, i.done)
	if err != nil {
		return err
	}
	m, err := qmp.Open(ctx, nc, i.heard)
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.monitor = m
	i.mu.Unlock()
	return nil
}

// forget lets go of the machine, which goes on.
func (i *instance) forget() {
	i.mu.Lock()
	p, m, img, ctl, first := i.pidfd, i.monitor, i.image, i.agent.ctl, i.agent.first
	i.pidfd, i.monitor, i.image, i.agent.ctl, i.agent.first = nil, nil, nil, nil, nil
	i.mu.Unlock()
	i.d.mu.Lock()
	if i.d.instances[i.id] == i {
		delete(i.d.instances, i.id)
	}
	i.d.mu.Unlock()
	if first != nil {
		first.Close()
	}
	i.words.Close()
	if m != nil {
		m.Close()
	}
	if ctl != nil {
		ctl.Close()
	}
	if img != nil {
		i.d.images.put(img)
	}
	if p != nil {
		i.d.watch.Remove(p)
		p.Close()
	}
}

// ID returns the sandbox's id.
func (i *instance) ID() sandbox.ID { return i.id }

// Handle returns the id: the record in the machine's directory holds the rest.
func (i *instance) Handle() []byte { return []byte(i.id) }

// until is ctx, over when the machine is.
func (i *instance) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-i.done:
			cancel(i.gone())
		case <-stop:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(stop); cancel(nil) })
}

func (i *instance) gone() error {
	return fmt.Errorf("full VM %s has ended: %w", i.id, sandbox.ErrUnavailable)
}

// Done is closed when the machine has ended.
func (i *instance) Done() <-chan struct{} { return i.done }

// End tells why it ended by itself.
func (i *instance) End() *sandbox.Failure {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// Pause stops the agent's commands, and then the processors. On failure it is as before.
func (i *instance) Pause(ctx context.Context) error {
	i.freeze(ctx)
	if err := i.run(ctx, "stop"); err != nil {
		i.thaw(context.WithoutCancel(ctx))
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	return nil
}

// Resume lets them go on. A system without an agent finds its clock late.
func (i *instance) Resume(ctx context.Context) error {
	_, err := i.stands(ctx)
	if err == nil {
		err = i.run(ctx, "cont")
	}
	if err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	i.thaw(ctx)
	return nil
}

// statsTimeout bounds what statistics wait for the agent.
const statsTimeout = 2 * time.Second

// Stats are as the node accounts them, the whole machine's; where an agent answers, processes and memory kills are those of
// its commands.
func (i *instance) Stats(ctx context.Context) (sandbox.Stats, error) {
	st, err := i.groups.Stats()
	if err != nil {
		return st, fmt.Errorf("statistics of %s: %w", i.id, err)
	}
	fi, err := os.Stat(filepath.Join(i.d.dir(i.id), diskName))
	if err != nil {
		return st, fmt.Errorf("disk usage of %s: %w", i.id, err)
	}
	if s, ok := fi.Sys().(*syscall.Stat_t); ok {
		st.DiskBytes = s.Blocks * 512
	}
	st.DiskLimitBytes, st.MemoryLimitBytes, st.PidsLimit, st.Pids = i.limits.Disk, i.limits.Memory, 0, 0 // threads of QEMU tell nothing
	if !closed(i.AgentUp()) {
		return st, nil
	}
	st.PidsLimit = i.limits.Pids
	if status, err := i.status(ctx); err != nil || status != "running" {
		return st, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if r, err := i.ask(ctx, &control.Request{Op: control.OpStats}); err == nil && r.Stats != nil {
		st.Pids, st.OOMKills = r.Stats.Pids, r.Stats.OOMKills
	}
	return st, nil
}

// Destroy ends the machine and removes its parts.
func (i *instance) Destroy(context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	p := i.pidfd
	i.mu.Unlock()
	if p != nil {
		_ = linux.SignalPID(p, int(syscall.SIGKILL))
	}
	if err := i.d.remove(i.id); err != nil {
		i.mu.Lock()
		i.destroyed = false // may be tried again
		i.mu.Unlock()
		return fmt.Errorf("remove full VM %s: %w", i.id, err)
	}
	i.finish(nil)
	i.forget()
	return nil
}

// run runs a monitor command without arguments.
func (i *instance) run(ctx context.Context, command string) error {
	return i.query(ctx, command, nil, nil)
}

// query runs a monitor command and reads its result.
func (i *instance) query(ctx context.Context, command string, args, out any) error {
	i.mu.Lock()
	m := i.monitor
	i.mu.Unlock()
	if m == nil {
		return i.gone()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := m.Do(ctx, command, args, out)
	if errors.Is(err, qmp.ErrClosed) {
		return fmt.Errorf("%w: %w", i.gone(), err)
	}
	return err
}

// monitor is the machine's, for what backends of machines share.
type monitor struct{ i *instance }

// Do implements qemu.Monitor.
func (m monitor) Do(ctx context.Context, command string, args, out any) error {
	return m.i.query(ctx, command, args, out)
}

// Pass implements qemu.Monitor.
func (m monitor) Pass(ctx context.Context, command string, args any, file *os.File) error {
	m.i.mu.Lock()
	c := m.i.monitor
	m.i.mu.Unlock()
	if c == nil {
		return m.i.gone()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.Pass(ctx, command, args, file)
}
