package edge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// command is a running command, or one waiting for its turn in a session. It belongs to the sandbox.
type command struct {
	b       *box
	order   int64
	id      string
	public  *dsecv1.Command // as it was recorded at its start; not changed any more
	session *session

	started chan struct{} // closed when it runs or has ended
	done    chan struct{} // closed when it has ended and that is recorded

	mu       sync.Mutex
	pid      int32
	group    sandbox.Group
	oomBase  int64
	acked    int64
	launched bool       // dsec-init has answered, or was found to run it
	adopted  bool       // found running over a new connection: its exit may come before the rest of its output
	exit     *wire.Exit // came before that answer or that output
	ended    *dsecv1.Command
	killed   bool           // the whole tree, by request
	signals  map[int32]bool // sent by request
	watchers []chan struct{}
	lossy    bool      // output could not be recorded
	once     sync.Once // closes started
}

func (c *command) markStarted() { c.once.Do(func() { close(c.started) }) }

// launch begins a command: it checks it, records it and starts it. The same operation id again returns the
// first one. The command exists when it returns; wait for started. An old command that has ended is returned
// as its order alone.
func (b *box) launch(ctx context.Context, spec *dsecv1.CommandSpec, operation string) (c *command, order int64, err error) {
	if err := checkCommand(spec, b.created.EnvBytes); err != nil {
		return nil, 0, err
	}
	if len(operation) > maxKeyLength {
		return nil, 0, invalid("operation id of %d bytes: want at most %d", len(operation), maxKeyLength)
	}
	b.mu.Lock()
	if operation != "" {
		if order := b.log.Operation(operation); order != 0 {
			c := b.commands[order]
			b.mu.Unlock()
			return c, order, b.sameCommand(c, order, spec)
		}
	}
	if err := b.reachable(); err != nil {
		b.mu.Unlock()
		return nil, 0, err
	}
	c, first, err := b.admitCommand(spec, operation)
	b.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	if first {
		// It belongs to the sandbox from here on, not to the caller.
		c.start(context.WithoutCancel(ctx), spec)
	} else {
		c.session.waitTurn(c, spec)
	}
	return c, c.order, nil
}

// sameCommand refuses an operation id that stands for another command: its result would be taken for this one's. What is
// not recorded (stdin, secrets, the ends of long arguments) is not compared.
func (b *box) sameCommand(c *command, order int64, spec *dsecv1.CommandSpec) error {
	var known *dsecv1.CommandSpec
	if c != nil {
		known = c.public.Spec
	} else if p, err := b.command(order); err == nil {
		known = p.Spec
	}
	if known == nil || proto.Equal(known, recorded(spec)) {
		return nil
	}
	return fmt.Errorf("operation id: %w: it stands for another command (c%d) of sandbox %s; use a new id for a new command", sandbox.ErrAlreadyExists, order, b.id)
}

// admitCommand records a command. first = it need not wait for others of its session. b.mu is held.
func (b *box) admitCommand(spec *dsecv1.CommandSpec, operation string) (c *command, first bool, err error) {
	if len(b.commands) >= b.e.cfg.MaxCommands {
		return nil, false, fmt.Errorf("sandbox %s: %w: %d commands are running, at most %d may; end some first",
			b.id, sandbox.ErrExhausted, len(b.commands), b.e.cfg.MaxCommands)
	}
	var s *session
	if spec.SessionId != "" {
		if s = b.sessions[spec.SessionId]; s == nil {
			return nil, false, fmt.Errorf("session %s: %w", spec.SessionId, sandbox.ErrNotFound)
		}
		if err := s.admits(b.e.cfg.MaxQueue); err != nil {
			return nil, false, err
		}
	}
	if err := b.step(lifecycle.Enter{}); err != nil { // held until it ends
		return nil, false, b.endedError()
	}
	public := &dsecv1.Command{OperationId: operation, Spec: recorded(spec)}
	entry, err := b.log.StartCommand(public)
	if err != nil {
		_ = b.step(lifecycle.Leave{})
		return nil, false, notRecorded("record command", err)
	}
	c = b.newCommand(public)
	first = true
	if s != nil {
		c.session = s
		first = s.enqueue(c)
	}
	b.e.hub.publish(b, entry)
	return c, first, nil
}

// newCommand adds a running command. b.mu is held.
func (b *box) newCommand(public *dsecv1.Command) *command {
	c := &command{
		b: b, order: public.Order, id: public.Id, public: public,
		started: make(chan struct{}), done: make(chan struct{}),
	}
	if b.commands == nil {
		b.commands = map[int64]*command{}
	}
	b.commands[c.order] = c
	return c
}

// start makes the command's group and has dsec-init start it. What goes wrong becomes the command's end.
func (c *command) start(ctx context.Context, spec *dsecv1.CommandSpec) {
	ctx, cancel := context.WithTimeout(ctx, c.b.e.cfg.StartTimeout)
	defer cancel()
	at := time.Now()
	err := c.b.running(ctx, func() error { return c.startNow(ctx, spec) })
	if err != nil {
		c.startFailed(err)
		return
	}
	c.b.e.stages.took("command.start", at)
	if len(spec.Stdin) > 0 {
		stdin := spec.Stdin
		c.b.e.spawn(func() { c.feed(stdin, !spec.KeepStdinOpen) })
	}
}

func (c *command) startNow(ctx context.Context, spec *dsecv1.CommandSpec) error {
	if err := c.b.log.Sync(); err != nil {
		return err
	}
	if err := failpoint.Hit("command.after_journal"); err != nil {
		return err
	}
	conn, inst, err := c.b.channel()
	if err != nil {
		return err
	}
	group, err := c.makeGroup(ctx, inst)
	if err != nil {
		return fmt.Errorf("make the command's control group: %w", err)
	}
	started, err := conn.Start(ctx, wireStart(c.id, spec), groupFiles(group))
	if group != nil {
		group.CloseFiles()
	}
	if err != nil {
		return err
	}
	if err := failpoint.Hit("command.after_start"); err != nil {
		return err
	}
	c.mu.Lock()
	c.pid, c.launched = started.PID, true
	exit := c.exit
	c.exit = nil
	c.mu.Unlock()
	c.markStarted()
	if exit != nil {
		c.end(*exit)
	}
	return nil
}

// makeGroup makes the control group that takes the command's whole tree. Commands in a session run in the
// session's.
func (c *command) makeGroup(ctx context.Context, inst sandbox.Instance) (sandbox.Group, error) {
	if !c.b.backend.Capabilities().CommandGroup {
		return nil, nil
	}
	if c.session != nil {
		if g := c.session.group; g != nil {
			if n, err := g.OOMKills(); err == nil {
				c.mu.Lock()
				c.oomBase = n
				c.mu.Unlock()
			}
		}
		return nil, nil
	}
	g, err := inst.Group(ctx, c.id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.group = g
	c.mu.Unlock()
	return g, nil
}

// startFailed ends a command that did not start.
func (c *command) startFailed(err error) {
	c.mu.Lock()
	adopted := c.adopted
	c.mu.Unlock()
	if adopted { // the answer was lost with the connection, but it runs
		return
	}
	// Whether it runs, never ran, or ended with the sandbox (whose own doing that may have been) shows as soon as the
	// channel is open again or the sandbox is found to be gone.
	if errors.Is(err, aether.ErrClosed) {
		select {
		case <-c.started:
			return
		case <-c.b.e.closing:
			return // the next edge finds out
		case <-time.After(doneWait + c.b.answerLimit() + listTimeout):
		}
	}
	f, code := startFailure(err)
	if fault, met := c.storeFault(); met && excusable(f) {
		f = fault // a program that cannot be read cannot be executed
	}
	if f.Kind == sandbox.KindInternal || f.Blame == sandbox.BlameInfra {
		c.b.e.log.Warn("command did not start", "sandbox", c.b.id, "command", c.id, "err", err)
	}
	c.b.endWith(c, f, code, 0)
}

// startFailure says of a refusal to start what it is and the code that a shell would give.
func startFailure(err error) (f *sandbox.Failure, code int32) {
	var guest *wire.Error
	if errors.As(err, &guest) {
		switch guest.Code {
		case wire.CodeNoProgram:
			return sandbox.NewFailure(sandbox.KindCannotStart, "%s", guest.Message), 127
		case wire.CodeInvalid, wire.CodeNotExecutable, wire.CodeNoUser, wire.CodeNoCwd, wire.CodePermission,
			wire.CodeSessionEnded, wire.CodeNotFound, wire.CodeWrongState, wire.CodeNotDirectory:
			return sandbox.NewFailure(sandbox.KindCannotStart, "%s", guest.Message), 126
		case wire.CodeExhausted, wire.CodeNoSpace: // its own limits: processes, memory
			f := sandbox.NewFailure(sandbox.KindCannotStart, "%s", guest.Message)
			f.Blame = sandbox.BlameTask
			return f, 126
		}
	}
	var f0 *sandbox.Failure
	if errors.As(err, &f0) {
		return f0, 126
	}
	if errors.Is(err, sandbox.ErrExhausted) {
		f := sandbox.NewFailure(sandbox.KindCannotStart, "%v", err)
		f.Blame = sandbox.BlameTask
		return f, 126
	}
	return sandbox.NewFailure(sandbox.KindInternal, "the command could not be started: %v", err), 126
}

func groupFiles(g sandbox.Group) []*os.File {
	if g == nil {
		return nil
	}
	return g.Files()
}

// feed writes what was given as stdin.
func (c *command) feed(data []byte, eof bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.done:
		case <-c.b.e.closing:
		case <-ctx.Done():
		}
		cancel()
	}()
	conn, _, err := c.b.channel()
	if err != nil {
		return
	}
	for len(data) > 0 {
		n := min(len(data), wire.MaxInput)
		last := n == len(data)
		if err := conn.Input(ctx, c.id, data[:n], eof && last); err != nil {
			return // it has closed its stdin, or ended
		}
		data = data[n:]
	}
}

// output records a piece of output. It is called by the connection's reader.
func (c *command) output(conn *aether.Conn, offset int64, stream record.Stream, data []byte) {
	end, err := c.b.log.Output(c.order, offset, stream, data)
	if err != nil {
		// What cannot be recorded is lost, and counted as cut: the command must not wait for ever.
		end = offset + int64(len(data))
	}
	c.mu.Lock()
	if err != nil && !c.lossy {
		c.lossy = true // said once
		c.b.e.log.Error("record output", "sandbox", c.b.id, "command", c.id, "err", err)
	}
	ack := end-c.acked >= ackEvery
	if ack {
		c.acked = end
	}
	var exit *wire.Exit
	if c.exit != nil && c.launched && end >= c.exit.OutputEnd {
		exit, c.exit = c.exit, nil
	}
	c.notify()
	c.mu.Unlock()
	if ack {
		conn.Ack(c.id, end)
	}
	if exit != nil {
		c.exited(*exit)
	}
}

// ackEvery is how much recorded output dsec-init may still hold in its buffer.
const ackEvery = 32 << 10

// watch returns a channel that gets a value when there is more to read; call the function when done.
func (c *command) watch() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	c.watchers = append(c.watchers, ch)
	c.mu.Unlock()
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, w := range c.watchers {
			if w == ch {
				c.watchers = append(c.watchers[:i], c.watchers[i+1:]...)
				return
			}
		}
	}
}

// notify wakes readers. c.mu is held.
func (c *command) notify() {
	for _, w := range c.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// show is the command as it is now.
func (c *command) show() *dsecv1.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	p := c.public
	return &dsecv1.Command{Id: p.Id, OperationId: p.OperationId, Order: p.Order, Spec: p.Spec, StartedAt: p.StartedAt, Pid: c.pid}
}
