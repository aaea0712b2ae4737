package container

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/container/pool"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/sandbox"
)

// instance is one container; it implements sandbox.Instance.
type instance struct {
	d      *Driver
	id     sandbox.ID
	slot   int
	net    bool // it has a link
	groups *cgroup.Sandbox
	layer  *pool.Layer
	done   chan struct{}

	mu        sync.Mutex
	pidfd     *os.File
	first     *aether.Conn // Create's connection, until Connect takes it
	end       *sandbox.Failure
	ended     bool
	destroyed bool
}

// newInstance turns a shell into an instance; from here on its end is the instance's.
func newInstance(d *Driver, sh *shell) *instance {
	i := &instance{d: d, id: sh.id, slot: sh.slot, net: sh.net, groups: sh.groups, layer: sh.layer, done: make(chan struct{}), pidfd: sh.pidfd, first: sh.conn}
	d.mu.Lock()
	delete(d.shells, i.id)
	d.instances[i.id] = i
	d.mu.Unlock()
	d.adopt(sh.pidfd, i.exited)
	return i
}

// ID returns the sandbox's id.
func (i *instance) ID() sandbox.ID { return i.id }

// Handle returns the id: the record in the shell's directory holds the rest.
func (i *instance) Handle() []byte { return []byte(i.id) }

// Connect returns a connection to dsec-init.
func (i *instance) Connect(ctx context.Context) (*aether.Conn, error) {
	i.mu.Lock()
	c := i.first
	i.first = nil
	i.mu.Unlock()
	if c != nil {
		return c, nil
	}
	nc, err := dialChannel(ctx, i.d.shellDir(i.id))
	if err != nil {
		return nil, fmt.Errorf("channel of %s: %w: %w", i.id, sandbox.ErrUnavailable, err)
	}
	if c, err = aether.Open(ctx, nc, i.d.nextEpoch()); err != nil {
		nc.Close()
		return nil, fmt.Errorf("channel of %s: %w", i.id, err)
	}
	return c, nil
}

// exited is called once when dsec-init has ended.
func (i *instance) exited() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return
	}
	i.ended = true
	if !i.destroyed {
		if said := i.d.lastWords(i.id); said != "" {
			i.d.log.Warn("dsec-init of a sandbox ended", "id", i.id, "said", said)
		}
		i.end = sandbox.NewFailure(sandbox.KindInitKilled, "dsec-init of the sandbox was killed; all its processes ended with it")
	}
	close(i.done)
}

// Done is closed when the container has ended.
func (i *instance) Done() <-chan struct{} { return i.done }

// End tells why it ended by itself.
func (i *instance) End() *sandbox.Failure {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// Group makes a command's control group.
func (i *instance) Group(_ context.Context, command string) (sandbox.Group, error) {
	return i.groups.MakeCommand(command)
}

// OpenGroup finds a command's control group.
func (i *instance) OpenGroup(command string) (sandbox.Group, error) {
	return i.groups.OpenCommand(command)
}

// Groups names the commands' control groups that exist.
func (i *instance) Groups() ([]string, error) { return i.groups.Commands() }

// freezeTimeout bounds how long all processes may take to stop.
const freezeTimeout = 10 * time.Second

// Pause freezes all of the sandbox's work; on failure it is as before.
func (i *instance) Pause(ctx context.Context) error {
	if err := i.groups.Freeze(); err != nil {
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	wait := freezeTimeout
	if dl, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(dl))
	}
	if err := i.groups.WaitFrozen(wait); err != nil {
		_ = i.groups.Thaw()
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	return nil
}

// Resume thaws it.
func (i *instance) Resume(context.Context) error {
	if err := i.groups.Thaw(); err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	return nil
}

// Stats reads what the kernel accounts.
func (i *instance) Stats(context.Context) (sandbox.Stats, error) {
	st, err := i.groups.Stats()
	if err != nil {
		return st, fmt.Errorf("statistics of %s: %w", i.id, err)
	}
	if st.DiskBytes, err = i.layer.Usage(); err != nil {
		return st, fmt.Errorf("disk usage of %s: %w", i.id, err)
	}
	st.DiskLimitBytes, err = i.layer.LimitBytes()
	return st, err
}

// DiskFull tells whether its writable layer, or the pool that it lies in, has no room left; unlike Stats it is exact.
func (i *instance) DiskFull(context.Context) (own, shared bool, err error) { return i.layer.Full() }

// Destroy ends the container. What then takes up room, but runs no more, is removed soon after.
func (i *instance) Destroy(context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	pidfd, first := i.pidfd, i.first
	i.first = nil
	i.mu.Unlock()
	if first != nil {
		first.Close()
	}
	start := time.Now()
	err := i.d.kill(i.id, pidfd)
	if err == nil && i.net && i.d.cfg.Network != nil {
		i.d.cfg.Network.Part(i.slot)
	}
	left := err == nil && i.d.remains.leave(i.id, i.slot)
	if err == nil && !left {
		err = i.d.removeRest(i.id)
	}
	if err != nil {
		i.mu.Lock()
		i.destroyed = false // may be tried again
		i.mu.Unlock()
		return fmt.Errorf("remove container %s: %w", i.id, err)
	}
	i.exited()
	i.d.mu.Lock()
	delete(i.d.instances, i.id)
	i.d.mu.Unlock()
	i.d.forget(pidfd)
	pidfd.Close()
	if !left {
		i.d.released(i.slot)
	}
	i.d.observe("destroy", time.Since(start))
	return nil
}

// released gives a slot back and tells those who wait for one.
func (d *Driver) released(slot int) {
	d.slots.release(slot)
	select {
	case d.freed <- struct{}{}:
	default:
	}
}
