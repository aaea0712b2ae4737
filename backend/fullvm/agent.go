package fullvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// agent is what is known of the agent inside. It is guarded by the instance's mu.
type agent struct {
	ctl     *qemu.Control
	channel *qemu.Channel // the last that was opened
	first   *aether.Conn  // Create's connection, until Connect takes it

	// up is closed while there is an agent; another one takes its place when it goes.
	up chan struct{}
	// turn counts the agents there were; used is the one that the last connection was to, 0 = none.
	turn, used int
}

// seedSize is of the randomness that a system gets, bytes.
const seedSize = 64

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// noAgent is the refusal of what an agent inside would do.
func (i *instance) noAgent() error {
	return fmt.Errorf("full VM %s has no agent inside (it is not installed, or its system has not started it yet; hack/fullvm-agent.sh installs it): %w", i.id, sandbox.ErrUnsupported)
}

// AgentUp implements sandbox.LateAgent.
func (i *instance) AgentUp() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.agent.up
}

// attachAgent connects to the agent's port and finds out whether there is one.
func (i *instance) attachAgent(ctx context.Context) error {
	nc, err := qemu.Await(ctx, i.d.dir(i.id), controlName, i.done)
	if err != nil {
		return err
	}
	ctl := qemu.NewControl(nc, i.agentSaid)
	i.mu.Lock()
	i.agent.ctl = ctl
	i.mu.Unlock()
	there, err := i.agentPort(ctx)
	if err == nil && there {
		i.agentCame(false)
	}
	return err
}

// agentPort tells whether something inside has the agent's port open.
func (i *instance) agentPort(ctx context.Context) (bool, error) {
	var ports []struct {
		Label string `json:"label"`
		Open  bool   `json:"frontend-open"`
	}
	if err := i.query(ctx, "query-chardev", nil, &ports); err != nil {
		return false, err
	}
	for _, p := range ports {
		if p.Label == controlName {
			return p.Open, nil
		}
	}
	return false, errors.New("QEMU knows no port of an agent")
}

// agentSaid is called with each of the agent's events.
func (i *instance) agentSaid(r *control.Reply) {
	switch r.Event {
	case control.EventReady:
		i.agentCame(true)
	case control.EventClosed:
		i.mu.Lock()
		c := i.agent.channel
		i.mu.Unlock()
		if c != nil && c.Began(r.Token) {
			c.Close()
		}
	case control.EventEnded:
		go i.finish(sandbox.NewFailure(sandbox.KindInitKilled, "its dsec-init has ended"))
	}
}

// checkAgent is called when a port was opened or closed inside.
func (i *instance) checkAgent() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	if there, err := i.agentPort(ctx); err == nil && !there {
		i.agentWent()
	}
}

// agentCame notes an agent. One that says so itself is another than the one before.
func (i *instance) agentCame(another bool) {
	i.mu.Lock()
	up := closed(i.agent.up)
	i.mu.Unlock()
	if up && !another {
		return
	}
	if up {
		i.agentWent()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !closed(i.agent.up) {
		i.agent.turn++
		close(i.agent.up)
	}
}

// agentWent notes that there is none any more; the connection to it ends.
func (i *instance) agentWent() {
	i.mu.Lock()
	c := i.agent.channel
	i.agent.channel = nil
	if closed(i.agent.up) {
		i.agent.up = make(chan struct{})
	}
	i.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Connect returns a connection to the agent. Without one it answers sandbox.ErrUnsupported, and so it does once when the
// one there is, is not the one of the connection before: what that ran is gone. A machine that stands still is let go on
// for it; its commands stay frozen.
func (i *instance) Connect(ctx context.Context) (*aether.Conn, error) {
	i.mu.Lock()
	a := &i.agent
	first, turn := a.first, a.turn
	a.first = nil
	other := !closed(a.up) || a.used != 0 && a.used != turn
	if other {
		a.used = 0
	}
	i.mu.Unlock()
	if other {
		if first != nil {
			first.Close()
		}
		return nil, i.noAgent()
	}
	if first != nil {
		return first, nil
	}
	if err := i.wake(ctx); err != nil {
		return nil, err
	}
	return i.connect(ctx, turn)
}

// wake lets a machine with an agent go on that stands still, so that the agent answers; its commands stay frozen.
func (i *instance) wake(ctx context.Context) error {
	i.mu.Lock()
	there := closed(i.agent.up)
	i.mu.Unlock()
	if !there {
		return nil
	}
	stands, err := i.stands(ctx)
	if err != nil || !stands {
		return err
	}
	return i.run(ctx, "cont")
}

// connect opens a connection to the agent of that turn, which gets what a claim says unless it has it.
func (i *instance) connect(ctx context.Context, turn int) (*aether.Conn, error) {
	i.connecting.Lock()
	defer i.connecting.Unlock()
	ctx, cancel := i.until(ctx)
	defer cancel()
	i.mu.Lock()
	ctl, old := i.agent.ctl, i.agent.channel
	i.agent.channel = nil
	i.mu.Unlock()
	if ctl == nil {
		return nil, i.gone()
	}
	if old != nil {
		old.Close() // QEMU serves one at a time
	}
	fresh, err := i.prepareAgent(ctx, ctl)
	if err != nil {
		return nil, fmt.Errorf("agent of %s: %w: %w", i.id, sandbox.ErrUnavailable, err)
	}
	nc, err := qemu.OpenChannel(ctx, i.d.dir(i.id), channelName, ctl)
	if err != nil {
		return nil, fmt.Errorf("channel of %s: %w: %w", i.id, sandbox.ErrUnavailable, err)
	}
	i.mu.Lock()
	i.agent.channel, i.agent.used = nc, turn
	i.mu.Unlock()
	c, err := aether.Open(ctx, nc, i.d.epoch.Add(1))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("channel of %s: %w", i.id, err)
	}
	if err := i.claim(ctx, c); err != nil {
		var w *wire.Error
		if fresh || !errors.As(err, &w) || w.Code != wire.CodeWrongState { // of an agent that was claimed by a predecessor
			c.Close()
			return nil, fmt.Errorf("channel of %s: %w", i.id, err)
		}
	}
	return c, nil
}

// prepareAgent makes the system inside one of its own; fresh tells that nobody has before.
func (i *instance) prepareAgent(ctx context.Context, ctl *qemu.Control) (fresh bool, err error) {
	_, err = ctl.Call(ctx, &control.Request{Op: control.OpPrepare, Prepare: i.prepare()})
	if errors.Is(err, sandbox.ErrAlreadyExists) {
		return false, nil
	}
	return err == nil, err
}

// prepare is what the agent is to make of the system.
func (i *instance) prepare() *control.Prepare {
	p := &control.Prepare{Seed: make([]byte, seedSize), Time: time.Now().UnixNano(), Pids: i.limits.Pids, Hostname: i.limits.Hostname, Network: i.d.inside(&i.limits)}
	_, _ = rand.Read(p.Seed) // never fails
	return p
}

// renewAgent makes a system that goes on from another one's memory one of its own, and lets its commands go on.
func (i *instance) renewAgent(ctx context.Context) error {
	p := i.prepare()
	if _, err := i.ask(ctx, &control.Request{Op: control.OpRenew, Prepare: p}); err != nil {
		if strings.HasSuffix(err.Error(), control.Unknown) {
			return fmt.Errorf("%w: the agent inside is of an earlier version, which cannot make a copy a machine of its own: install this node's in the disk (hack/fullvm-agent.sh)",
				sandbox.ErrFailedPrecondition)
		}
		return err
	}
	c, err := i.Connect(ctx)
	if err != nil {
		return err
	}
	l := &i.limits
	err = c.Claim(ctx, &wire.Claim{Hostname: l.Hostname, Env: i.env, User: l.User, Workdir: l.Workdir, Seed: p.Seed}, nil)
	if err == nil {
		_, err = i.ask(ctx, &control.Request{Op: control.OpThaw, Time: time.Now().UnixNano()})
	}
	if err != nil {
		c.Close()
		return err
	}
	i.mu.Lock()
	i.agent.first = c
	i.mu.Unlock()
	return nil
}

// claim tells dsec-init whose it is. The sandbox's variables may hold secrets and are not stored: a process that has not
// made the machine does not have them.
func (i *instance) claim(ctx context.Context, c *aether.Conn) error {
	l := &i.limits
	return c.Claim(ctx, &wire.Claim{Hostname: l.Hostname, Env: i.env, User: l.User, Workdir: l.Workdir, NoNewPrivileges: l.NoNewPrivileges}, nil)
}

// evidenceRoom is left of a creation's time to tell why it failed.
const evidenceRoom = 5 * time.Second

// awaitAgent waits until the agent that the disk is said to have is there, and connects.
func (i *instance) awaitAgent(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-evidenceRoom))
		defer cancel()
	}
	ctx, stop := i.until(ctx)
	defer stop()
	select {
	case <-i.AgentUp():
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return errNoAgentCame
	}
	c, err := i.Connect(ctx)
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.agent.first = c
	i.mu.Unlock()
	return nil
}

// errNoAgentCame is a disk that was imported as one with an agent.
var errNoAgentCame = errors.New("its system has not started an agent in time, which the disk was imported as having (--agent)")

// ask is a request to the agent, with a deadline.
func (i *instance) ask(ctx context.Context, q *control.Request) (*control.Reply, error) {
	i.mu.Lock()
	ctl, up, ended := i.agent.ctl, closed(i.agent.up), i.ended
	i.mu.Unlock()
	if ctl == nil || ended {
		return nil, i.gone()
	}
	if !up {
		return nil, i.noAgent()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return ctl.Call(ctx, q)
}

// Group names a command's control group.
func (i *instance) Group(_ context.Context, command string) (sandbox.Group, error) {
	return &qemu.Group{Name: command, Ask: i.ask}, nil
}

// OpenGroup finds a command's control group.
func (i *instance) OpenGroup(command string) (sandbox.Group, error) {
	g := &qemu.Group{Name: command, Ask: i.ask}
	return g, g.Open()
}

// fullDisk is how much room counts as none, bytes.
const fullDisk = 64 << 10

// DiskFull implements sandbox.DiskMeter: it asks for the root's file system.
func (i *instance) DiskFull(ctx context.Context) (own, shared bool, err error) {
	r, err := i.ask(ctx, &control.Request{Op: control.OpDisk})
	if err != nil {
		return false, false, err
	}
	return r.Free < fullDisk, false, nil
}

// freeze stops the agent's commands, so that whoever connects finds them stopped; thaw tells the time as well, which stood
// still with the machine. Without an agent, or with one that does not answer, there is nothing to do.
func (i *instance) freeze(ctx context.Context) {
	if closed(i.AgentUp()) {
		_, _ = i.ask(ctx, &control.Request{Op: control.OpFreeze})
	}
}

func (i *instance) thaw(ctx context.Context) {
	if closed(i.AgentUp()) {
		_, _ = i.ask(ctx, &control.Request{Op: control.OpThaw, Time: time.Now().UnixNano()})
	}
}

// EndInit ends the agent's dsec-init, for tests of what follows. Error: sandbox.ErrNotFound.
func (d *Driver) EndInit(id sandbox.ID) error {
	d.mu.Lock()
	i := d.instances[id]
	d.mu.Unlock()
	if i == nil {
		return fmt.Errorf("full VM %s: %w", id, sandbox.ErrNotFound)
	}
	_, err := i.ask(context.Background(), &control.Request{Op: control.OpEnd})
	if errors.Is(err, sandbox.ErrUnavailable) {
		return nil // it went before it answered
	}
	return err
}
