package edge

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// doneWait is how long after the channel's end the machine's may take to show; reconnectTimeout bounds
	// the one attempt to open the channel again. Together they stay below a second.
	doneWait         = 300 * time.Millisecond
	reconnectTimeout = 500 * time.Millisecond
	listTimeout      = 10 * time.Second
	// answerTries is how often a sandbox that does not answer is tried again within Config.AnswerLimit.
	answerTries = 24
)

// receiver gets what a dsec-init says over one connection.
type receiver struct {
	b    *box
	conn *aether.Conn
}

// Output implements aether.Handler.
func (r *receiver) Output(id string, offset int64, stream wire.Stream, data []byte) {
	if c := r.command(id); c != nil {
		c.output(r.conn, offset, record.Stream(stream), data)
		return
	}
	r.conn.Ack(id, offset+int64(len(data))) // of a command that has ended for us: nobody wants it
}

// Exited implements aether.Handler.
func (r *receiver) Exited(id string, x wire.Exit) {
	if c := r.command(id); c != nil {
		c.exited(x)
		return
	}
	r.conn.Release(id) // its end is recorded
}

// SessionEnded implements aether.Handler.
func (r *receiver) SessionEnded(id string, x wire.Exit) {
	r.b.mu.Lock()
	s := r.b.sessions[id]
	r.b.mu.Unlock()
	if s != nil {
		s.shellEnded()
	}
}

// Closed implements aether.Handler.
func (r *receiver) Closed(err error) {
	r.b.e.spawn(func() { r.b.channelLost(r.conn, err) })
}

func (r *receiver) command(id string) *command {
	order, ok := record.OrderOf(id)
	if !ok {
		return nil
	}
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.b.commands[order]
}

// channelLost is called when a connection has ended. If the machine has ended too, that is the sandbox's end;
// if not, the channel is opened once more: a dsec-init that refuses has failed, and one that takes too long is given more
// time.
func (b *box) channelLost(conn *aether.Conn, cause error) {
	b.mu.Lock()
	current := b.conn == conn
	if current {
		b.conn = nil
	}
	inst := b.inst
	paused := b.machine.State() == sandbox.StatePaused
	b.mu.Unlock()
	if !current || inst == nil {
		return
	}
	select {
	case <-inst.Done():
		b.lost(inst, cause)
		return
	case <-b.gone:
		return
	case <-b.e.closing:
		return
	case <-time.After(doneWait):
	}
	if paused && saver(inst) != nil { // connecting lets its machine go on, which is to stand still again then
		b.join(inst)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconnectTimeout)
	defer cancel()
	_, err := b.link(ctx, inst)
	if b.isBare(err) {
		b.agentWent(inst)
		return
	}
	if err != nil {
		b.unanswered(inst, errors.Join(cause, err))
	}
}

// link opens the channel of a machine, unless it is open: somebody else may have wanted it meanwhile. It tells which.
func (b *box) link(ctx context.Context, inst sandbox.Instance) (opened bool, err error) {
	b.linking.Lock()
	defer b.linking.Unlock()
	b.mu.Lock()
	open := b.conn != nil
	b.mu.Unlock()
	if open {
		return false, nil
	}
	conn, err := inst.Connect(ctx)
	if err != nil {
		return false, err
	}
	if err := b.attach(conn); err != nil {
		b.mu.Lock()
		if b.conn == conn { // what is closed is not open
			b.conn = nil
		}
		b.mu.Unlock()
		closeQuietly(conn)
		return false, err
	}
	return true, nil
}

// late tells errors of what did not answer in time.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, sandbox.ErrDeadline)
}

// answerLimit is how long the sandbox may leave its channel unanswered. What shares the node's kernel has no machine beside it
// that could be the slow one.
func (b *box) answerLimit() time.Duration {
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	if _, ok := inst.(sandbox.Responder); ok {
		return b.e.cfg.AnswerLimit
	}
	return min(b.e.cfg.AnswerLimit, b.e.cfg.SharedAnswerLimit)
}

// unanswered is called when the channel of a sandbox could not be opened. While its machine has not ended, and only takes its
// time, that is tried again until AnswerLimit is over: a node without a processor to spare ends nothing.
func (b *box) unanswered(inst sandbox.Instance, cause error) {
	select {
	case <-inst.Done():
		b.lost(inst, cause)
		return
	default:
	}
	b.mu.Lock()
	now := b.e.boot()
	if b.silentSince == 0 {
		b.silentSince = now
	}
	silent := now - b.silentSince
	b.conn = nil
	b.mu.Unlock()
	limit := b.answerLimit()
	over := silent >= limit
	if !late(cause) || over {
		b.lost(inst, cause)
		return
	}
	b.e.log.Warn("a sandbox does not answer; it is tried again", "sandbox", b.id, "err", cause)
	b.e.spawn(func() {
		select {
		case <-inst.Done():
			b.lost(inst, cause)
		case <-time.After(limit / answerTries):
			b.join(inst)
		case <-b.gone:
		case <-b.e.closing:
		}
	})
}

// lost ends a sandbox whose dsec-init is gone, or has not answered for too long.
func (b *box) lost(inst sandbox.Instance, cause error) {
	f := verdict(inst, cause)
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := b.stop(ctx, f); ignoreClosed(err) != nil {
		b.e.log.Error("end a lost sandbox", "sandbox", b.id, "err", err)
	}
}

// verdict tells why an instance that is lost has ended, or is ended now. A program of the platform's that does not answer is
// no sandbox's doing.
func verdict(inst sandbox.Instance, cause error) *sandbox.Failure {
	select {
	case <-inst.Done():
		if f := inst.End(); f != nil {
			return f
		}
	default:
		if r, ok := inst.(sandbox.Responder); ok {
			if err := r.Responds(context.Background()); err != nil {
				f := sandbox.NewFailure(sandbox.KindVMMCrashed, "what runs the sandbox's machine has stopped to answer")
				f.Evidence = clip(err.Error(), maxEvidence)
				return f
			}
		}
	}
	f := sandbox.NewFailure(sandbox.KindInitKilled, "its dsec-init has ended")
	if late(cause) {
		f.Message = "its dsec-init does not answer"
	}
	if cause != nil {
		f.Evidence = clip(cause.Error(), maxEvidence)
	}
	return f
}

// attach takes a new connection into use: it learns what dsec-init runs, goes on with each command's output
// where the record ends, and ends those that dsec-init does not know, for they never ran.
func (b *box) attach(conn *aether.Conn) error {
	b.mu.Lock()
	b.conn = conn
	running := make([]*command, 0, len(b.commands))
	for _, c := range b.commands {
		running = append(running, c)
	}
	b.mu.Unlock()
	conn.Serve(&receiver{b: b, conn: conn})
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	list, err := conn.List(ctx)
	if err != nil {
		return err
	}
	known := make(map[string]*wire.CommandStatus, len(list))
	for i := range list {
		known[list[i].ID] = &list[i]
	}
	for _, c := range running {
		s := known[c.id]
		delete(known, c.id)
		if s == nil {
			b.neverRan(c)
			continue
		}
		if err := c.resume(ctx, conn, s); err != nil {
			return err
		}
	}
	for id, s := range known {
		b.disown(ctx, conn, id, s)
	}
	return nil
}

// resume goes on with a command that runs, or that ended while nobody listened.
func (c *command) resume(ctx context.Context, conn *aether.Conn, s *wire.CommandStatus) error {
	c.mu.Lock()
	c.launched, c.adopted, c.exit = true, true, nil
	c.pid = s.PID
	c.mu.Unlock()
	c.markStarted()
	if c.session != nil {
		c.b.mu.Lock()
		c.session.current = c
		c.b.mu.Unlock()
	}
	// What dsec-init does not hold any more was lost before it was recorded, and shows as cut.
	from := min(max(c.b.log.OutputEnd(c.order), s.Buffered), s.End)
	c.mu.Lock()
	c.acked = from
	c.mu.Unlock()
	if err := conn.Resume(ctx, c.id, from); err != nil {
		return err
	}
	// The acknowledgement of what is recorded may have been lost with the connection. With its buffer full of that, the
	// command would wait for ever: no output would come that could be acknowledged.
	conn.Ack(c.id, from)
	return nil
}

// neverRan ends a command whose start was recorded but that dsec-init does not know: it forgets a command
// only after its end is recorded here, so this one was never started. Its operation id may be used again.
func (b *box) neverRan(c *command) {
	c.mu.Lock()
	launched := c.launched
	c.mu.Unlock()
	if launched { // it ended, and the record of that is on its way
		return
	}
	b.log.ReleaseOperation(c.public.OperationId, c.order)
	b.endWith(c, sandbox.NewFailure(sandbox.KindInternal, "the edge, or its channel to the sandbox, went away before the command was started; it did not run"), 126, 0)
}

// inherit lets the commands that a sandbox began with go on: what they say is nobody's.
func (b *box) inherit(ctx context.Context, conn *aether.Conn) error {
	if b.created.FirstOrder == 0 {
		return nil
	}
	if err := conn.HoldTimeouts(ctx, false); err != nil { // the original may have been paused
		return err
	}
	list, err := conn.List(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		b.disown(ctx, conn, list[i].ID, &list[i])
	}
	return nil
}

// disown deals with a command that dsec-init knows and the record does not take for running. Those that a sandbox began
// with go on.
func (b *box) disown(ctx context.Context, conn *aether.Conn, id string, s *wire.CommandStatus) {
	if order, ok := record.OrderOf(id); ok && order < b.created.FirstOrder && !s.Ended {
		if err := conn.Resume(ctx, id, s.End); err != nil {
			b.e.log.Warn("let go of a command that the sandbox began with", "sandbox", b.id, "command", id, "err", err)
		}
		conn.Ack(id, s.End)
		return
	}
	if !s.Ended {
		b.e.log.Warn("end a command that is not in the record", "sandbox", b.id, "command", id)
		if err := conn.Signal(ctx, id, 9, true); err != nil {
			b.e.log.Warn("end a command that is not in the record", "sandbox", b.id, "command", id, "err", err)
		}
		return // its exit is released when it comes
	}
	conn.Release(id)
}
