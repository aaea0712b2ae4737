package microvm

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
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// askTimeout bounds what a running machine is asked, where the caller has no sooner deadline.
const askTimeout = 20 * time.Second

// instance is one machine; it implements sandbox.Instance.
type instance struct {
	d      *Driver
	id     sandbox.ID
	limits record
	groups *cgroup.Sandbox
	done   chan struct{}
	words  *qemu.Words

	boot     string // how it came up: bootWarm and so on
	layersAs string // how its layers come to it, in words; "" = as disks

	connecting sync.Mutex // of Connect: the channel has one user at a time
	moving     sync.Mutex // while it is put away or brought back; before mu

	// Of a machine that was not booted for its environment: how often its disks were filled, and the nodes in them. They are
	// its maker's.
	fills  int
	filled map[string]filling
	handed int // how many files QEMU was given

	mu        sync.Mutex
	pidfd     *os.File
	monitor   *qmp.Conn
	ctl       *controlConn
	channel   *channelConn // the last that was opened
	first     *aether.Conn // Create's connection, until Connect takes it
	end       *sandbox.Failure
	ended     bool
	destroyed bool
	owned     bool // a sandbox's: its creation has succeeded
	saved     bool // it is put away: QEMU does not run
	stopMove  context.CancelFunc

	// What its slot is under, for the next tap; under moving.
	policy     sandbox.NetworkPolicy // nil = none yet
	generation uint64
}

// How machines come up.
const (
	bootWarm  = "warm"  // it was ready
	bootClone = "clone" // of a template
	bootCold  = "cold"
	bootSaved = "snapshot" // it goes on from one
)

// Boot tells how the machine came up: warm, clone, cold or snapshot; "" after another process made it.
func (i *instance) Boot() string { return i.boot }

// LayersAs tells how its layers come to the machine; "" = as disks, as ever, or another process made it.
func (i *instance) LayersAs() string { return i.layersAs }

// Kernel is the version of the machine's kernel, as uname says inside; "" = unknown.
func (i *instance) Kernel() string { return i.limits.Kernel }

func (i *instance) own() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.owned = true
}

func (i *instance) isOwned() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.owned
}

// newInstance makes an instance of a QEMU that runs, whose end is the instance's from here on, or of one that is put away: nil.
func (d *Driver) newInstance(r *record, pidfd *os.File) (*instance, error) {
	groups, err := d.groups(r.ID)
	if err != nil {
		return nil, err
	}
	i := &instance{d: d, id: r.ID, limits: *r, groups: groups, done: make(chan struct{}), pidfd: pidfd, filled: map[string]filling{}, saved: r.Saved}
	if i.words, err = qemu.OpenWords(d.dir(r.ID)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.instances[i.id] = i
	d.mu.Unlock()
	if r.Saved {
		return i, nil
	}
	if err := d.watch.Add(pidfd, func() { go i.exited(pidfd) }); err != nil {
		d.log.Error("cannot watch a machine", "err", err)
		go i.exited(pidfd)
	}
	return i, nil
}

// attach connects to the monitor and to the machine's first program. A machine that has ended already is found out.
func (i *instance) attach(ctx context.Context) error {
	if err := i.attachMonitor(ctx); err != nil {
		return err
	}
	if err := i.attachControl(ctx); err != nil {
		return err
	}
	status, err := i.status(ctx)
	if err == nil && qemu.Over(status) {
		i.stopped(ctx)
	}
	return err
}

func (i *instance) attachMonitor(ctx context.Context) error {
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
	return nil
}

func (i *instance) attachControl(ctx context.Context) error {
	nc, err := awaitSocket(ctx, i.d.dir(i.id), controlName, i.done)
	if err != nil {
		return err
	}
	ctl := newControlConn(nc, i.channelClosed)
	i.mu.Lock()
	i.ctl = ctl
	i.mu.Unlock()
	return nil
}

// forget lets go of the machine, which goes on.
func (i *instance) forget() {
	i.mu.Lock()
	p, m, ctl, first := i.pidfd, i.monitor, i.ctl, i.first
	i.pidfd, i.monitor, i.ctl, i.first = nil, nil, nil, nil
	i.mu.Unlock()
	i.d.mu.Lock()
	if i.d.instances[i.id] == i {
		delete(i.d.instances, i.id)
	}
	i.d.mu.Unlock()
	i.words.Close()
	if first != nil {
		first.Close()
	}
	if m != nil {
		m.Close()
	}
	if ctl != nil {
		ctl.close()
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

// control is the connection to the machine's first program.
func (i *instance) control() (*controlConn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.saved {
		return nil, fmt.Errorf("machine %s: %w: it is paused, with its memory on disk", i.id, sandbox.ErrUnavailable)
	}
	if i.ctl == nil || i.ended {
		return nil, fmt.Errorf("machine %s: %w: it has ended", i.id, sandbox.ErrUnavailable)
	}
	return i.ctl, nil
}

// Connect returns a connection to dsec-init. A machine that stands still is let go on for it; its commands stay frozen.
func (i *instance) Connect(ctx context.Context) (*aether.Conn, error) {
	i.mu.Lock()
	c := i.first
	i.first = nil
	i.mu.Unlock()
	if c != nil {
		return c, nil
	}
	if err := i.wake(ctx); err != nil {
		return nil, err
	}
	return i.connect(ctx)
}

// wake lets a machine go on that stands still, so that its first program answers; its commands stay frozen. An edge that was
// killed while it saved the machine may have left QEMU with the end of that.
func (i *instance) wake(ctx context.Context) error {
	if err := i.bringBack(ctx); err != nil {
		return err
	}
	for {
		status, err := i.status(ctx)
		if err != nil {
			return err
		}
		if qemu.StandsStill(status) {
			return i.run(ctx, "cont")
		}
		if status != "finish-migrate" {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// respondTimeout bounds how long QEMU itself may take to answer.
const respondTimeout = 5 * time.Second

// Responds implements sandbox.Responder: what QEMU does not answer is not the guest's doing.
func (i *instance) Responds(ctx context.Context) error {
	if i.Saved() { // nothing of it is to answer
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, respondTimeout)
	defer cancel()
	if _, err := i.status(ctx); err != nil {
		return fmt.Errorf("QEMU's monitor does not answer: %w", err)
	}
	return nil
}

// wakeAgain is wake for a machine whose monitor this process has: where that is silent or gone it is opened again, once.
// One that is put away stays so.
func (i *instance) wakeAgain(ctx context.Context) error {
	if i.Saved() {
		return nil
	}
	err := i.Responds(ctx)
	if err != nil && ctx.Err() == nil {
		i.mu.Lock()
		old := i.monitor
		i.mu.Unlock()
		if old != nil {
			old.Close() // QEMU serves one at a time
		}
		err = i.attachMonitor(ctx)
	}
	if err != nil {
		return err
	}
	status, err := i.status(ctx)
	if err == nil && qemu.Over(status) {
		i.stopped(ctx)
		return nil // its end is known
	}
	return i.wake(ctx)
}

func (i *instance) connect(ctx context.Context) (*aether.Conn, error) {
	i.connecting.Lock()
	defer i.connecting.Unlock()
	ctl, err := i.control()
	if err != nil {
		return nil, err
	}
	ctx, cancel := i.until(ctx)
	defer cancel()
	i.mu.Lock()
	old := i.channel
	i.channel = nil
	i.mu.Unlock()
	if old != nil {
		old.Close() // QEMU serves one at a time
	}
	nc, err := openChannel(ctx, i.d.dir(i.id), ctl)
	if err != nil {
		return nil, fmt.Errorf("channel of %s: %w: %w", i.id, sandbox.ErrUnavailable, err)
	}
	i.mu.Lock()
	i.channel = nc
	i.mu.Unlock()
	c, err := aether.Open(ctx, nc, i.d.nextEpoch())
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("channel of %s: %w", i.id, err)
	}
	return c, nil
}

// until is ctx, over when the machine is.
func (i *instance) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-i.done:
			cancel(fmt.Errorf("machine %s has ended: %w", i.id, sandbox.ErrUnavailable))
		case <-stop:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(stop); cancel(nil) })
}

// channelClosed is called when dsec-init has closed a connection.
func (i *instance) channelClosed(token []byte) {
	i.mu.Lock()
	c := i.channel
	i.mu.Unlock()
	if c != nil && c.Began(token) {
		c.Close()
	}
}

// Done is closed when the machine has ended.
func (i *instance) Done() <-chan struct{} { return i.done }

// End tells why it ended by itself.
func (i *instance) End() *sandbox.Failure {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// ask is a request to the machine's first program, with a deadline.
func (i *instance) ask(ctx context.Context, q *control.Request) (*control.Reply, error) {
	ctl, err := i.control()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return ctl.call(ctx, q)
}

// Pause stops the commands, so that whoever connects finds them stopped, and then the machine. On failure it is as
// before.
func (i *instance) Pause(ctx context.Context) error {
	if i.Saved() {
		return nil
	}
	if _, err := i.ask(ctx, &control.Request{Op: control.OpFreeze}); err != nil {
		_, _ = i.ask(context.WithoutCancel(ctx), &control.Request{Op: control.OpThaw})
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	if err := i.run(ctx, "stop"); err != nil {
		_, _ = i.ask(context.WithoutCancel(ctx), &control.Request{Op: control.OpThaw})
		return fmt.Errorf("pause %s: %w", i.id, err)
	}
	return nil
}

// Resume lets them go on, at the time that it is by now.
func (i *instance) Resume(ctx context.Context) error {
	if err := i.bringBack(ctx); err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	if err := i.run(ctx, "cont"); err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	if _, err := i.ask(ctx, &control.Request{Op: control.OpThaw, Time: time.Now().UnixNano()}); err != nil {
		return fmt.Errorf("resume %s: %w", i.id, err)
	}
	return nil
}

// statsTimeout bounds what statistics wait for the machine.
const statsTimeout = 2 * time.Second

// Stats are processor time and disk as the node accounts them, the whole machine's, and memory and processes as the
// machine says of the sandbox's commands. Where it does not answer, paused for instance, memory is the whole machine's.
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
	st.DiskLimitBytes, st.MemoryLimitBytes, st.PidsLimit, st.Pids = i.limits.Disk, i.limits.Memory, i.limits.Pids, 0
	if i.Saved() {
		st.MemoryBytes, st.SavedBytes = 0, bytesOf(filepath.Join(i.d.savedDir(i.id), ramName))
		return st, nil
	}
	status, err := i.status(ctx)
	if err != nil || status != "running" {
		return st, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if r, err := i.ask(ctx, &control.Request{Op: control.OpStats}); err == nil && r.Stats != nil {
		st.MemoryBytes, st.MemoryPeakBytes, st.Pids, st.OOMKills = r.Stats.Memory, r.Stats.MemoryPeak, r.Stats.Pids, r.Stats.OOMKills
	}
	return st, nil
}

// fullDisk is how much room counts as none, bytes: less than ext4 gives to a file at once.
const fullDisk = 64 << 10

// DiskFull asks the machine; that the node's disk is full QEMU would say as an error of the guest's.
func (i *instance) DiskFull(ctx context.Context) (own, shared bool, err error) {
	r, err := i.ask(ctx, &control.Request{Op: control.OpDisk})
	if err != nil {
		return false, false, err
	}
	return r.Free < fullDisk, false, nil
}

// Destroy ends the machine and removes its parts.
func (i *instance) Destroy(context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	if i.stopMove != nil {
		i.stopMove()
	}
	i.mu.Unlock()
	i.moving.Lock() // nothing is started any more
	defer i.moving.Unlock()
	i.mu.Lock()
	p := i.pidfd
	i.mu.Unlock()
	if p != nil {
		_ = linux.SignalPID(p, int(syscall.SIGKILL))
	}
	if err := i.d.remove(i.id); err != nil {
		i.mu.Lock()
		i.destroyed = false // may be tried again
		i.mu.Unlock()
		return fmt.Errorf("remove machine %s: %w", i.id, err)
	}
	i.finish(nil)
	i.forget()
	return nil
}

// run runs a monitor command without arguments.
func (i *instance) run(ctx context.Context, command string) error {
	i.mu.Lock()
	m := i.monitor
	i.mu.Unlock()
	if m == nil {
		return fmt.Errorf("machine %s: %w: it has ended", i.id, sandbox.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return m.Do(ctx, command, nil, nil)
}

var errNoMonitor = errors.New("no connection to the monitor")

// query runs a monitor command and reads its result.
func (i *instance) query(ctx context.Context, command string, args, out any) error {
	i.mu.Lock()
	m := i.monitor
	i.mu.Unlock()
	if m == nil {
		return errNoMonitor
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return m.Do(ctx, command, args, out)
}
