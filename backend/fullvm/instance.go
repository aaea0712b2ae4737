package fullvm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/microvm/qmp"
	"github.com/opendsec/dsec/guest/aether"
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
	done   chan struct{}

	// screen is held by whoever uses the screen: one at a time.
	screen chan struct{}

	logMu sync.Mutex
	fw    []byte // what the firmware has said; QEMU hands it out once

	mu        sync.Mutex
	pidfd     *os.File
	monitor   *qmp.Conn
	image     *image // nil = another process mounted it
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
	i := &instance{d: d, id: r.ID, limits: *r, groups: groups, done: make(chan struct{}), screen: make(chan struct{}, 1), pidfd: pidfd}
	d.mu.Lock()
	d.instances[i.id] = i
	d.mu.Unlock()
	if err := d.watch.Add(pidfd, func() { go i.exited() }); err != nil {
		d.log.Error("cannot watch a machine", "err", err)
		go i.exited()
	}
	return i, nil
}

// attach connects to the monitor. A machine that has ended already is found out.
func (i *instance) attach(ctx context.Context) error {
	nc, err := awaitSocket(ctx, i.d.dir(i.id), monitorName, i.done)
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
	status, err := i.status(ctx)
	if err == nil && over(status) {
		i.stopped(ctx)
	}
	return err
}

// forget lets go of the machine, which goes on.
func (i *instance) forget() {
	i.mu.Lock()
	p, m, img := i.pidfd, i.monitor, i.image
	i.pidfd, i.monitor, i.image = nil, nil, nil
	i.mu.Unlock()
	i.d.mu.Lock()
	if i.d.instances[i.id] == i {
		delete(i.d.instances, i.id)
	}
	i.d.mu.Unlock()
	if m != nil {
		m.Close()
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

// noAgent is the refusal of what a dsec-init inside would do.
func (i *instance) noAgent() error {
	return fmt.Errorf("full VM %s has no agent inside: %w", i.id, sandbox.ErrUnsupported)
}

// Connect answers sandbox.ErrUnsupported: there is no dsec-init inside.
func (i *instance) Connect(context.Context) (*aether.Conn, error) { return nil, i.noAgent() }

// Group answers sandbox.ErrUnsupported.
func (i *instance) Group(context.Context, string) (sandbox.Group, error) { return nil, i.noAgent() }

// OpenGroup answers sandbox.ErrUnsupported.
func (i *instance) OpenGroup(string) (sandbox.Group, error) { return nil, i.noAgent() }

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

// Pause stops the processors.
func (i *instance) Pause(ctx context.Context) error {
	if err := i.run(ctx, "stop"); err != nil {
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	return nil
}

// Resume lets them go on. The system inside finds its clock late.
func (i *instance) Resume(ctx context.Context) error {
	if err := i.run(ctx, "cont"); err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	return nil
}

// Stats are as the node accounts them, the whole machine's.
func (i *instance) Stats(context.Context) (sandbox.Stats, error) {
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
	st.DiskLimitBytes, st.MemoryLimitBytes, st.PidsLimit, st.Pids = i.limits.Disk, i.limits.Memory, 0, 0
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

// dial connects to a socket in the machine's directory, by way of a descriptor, because socket addresses end at 108 bytes.
func dial(ctx context.Context, dir, name string) (net.Conn, error) {
	dh, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer dh.Close()
	var dl net.Dialer
	return dl.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dh.Fd(), name))
}

// awaitSocket waits until a process listens in dir. There is no event for that.
func awaitSocket(ctx context.Context, dir, name string, gone <-chan struct{}) (net.Conn, error) {
	for {
		nc, err := dial(ctx, dir, name)
		if err == nil {
			return nc, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-gone:
			return nil, fmt.Errorf("%w: QEMU has ended", sandbox.ErrUnavailable)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
