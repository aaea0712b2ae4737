package initd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// How long a command whose leader has ended is drained: until quiet for drainQuiet, at most drainMost, and what
// lay in the pipes when the leader ended in any case.
const (
	drainQuiet = 30 * time.Millisecond
	drainMost  = 250 * time.Millisecond
	maxSpans   = 4096 // changes between stdout and stderr that are held
	outputSize = 256 << 10
	minSpace   = 1 << 10 // a buffer with less room grows
)

// command is one that the edge started: running, ended, not yet released.
type command struct {
	i       *Init
	id      string
	pid     int
	session *session // nil = a process of its own
	began   int64    // monotonic nanoseconds

	out      ring
	spans    []span // of out, in order; the last one ends at out.end
	outlets  []*outlet
	attached bool  // the connection wants its output
	next     int64 // offset of the next byte to send
	told     bool  // Exited was sent on this connection
	isQueued bool

	input  *inlet // stdin or terminal; nil = none
	killFD int    // cgroup.kill; -1 = none

	timeout  timer
	left     time.Duration // of the timeout, while the sandbox is frozen; 0 = none
	timedOut bool
	signaled bool // by the edge

	leaderEnded bool
	endedAt     int64
	drain       timer
	ended       bool
	exit        wire.Exit
}

// span tells the stream of the bytes up to an offset.
type span struct {
	end    int64
	stream wire.Stream
}

func (i *Init) newCommand(id string) *command {
	c := &command{i: i, id: id, killFD: -1, attached: true, began: now()}
	c.out = ring{limit: outputSize, budget: &i.outputMemory}
	return c
}

// add makes a started command known.
func (i *Init) add(c *command) {
	i.commands[c.id] = c
	i.live++
}

// exited is called when the leader was reaped.
func (c *command) exited(ws unix.WaitStatus) {
	if ws.Signaled() {
		c.exit.Signal = int32(ws.Signal())
	} else {
		c.exit.Code = int32(ws.ExitStatus())
	}
	c.pid = -c.pid // no longer ours to signal
	c.finishLeader()
}

// finishLeader begins the drain.
func (c *command) finishLeader() {
	c.leaderEnded, c.endedAt = true, now()
	c.i.timers.stop(&c.timeout)
	if c.input != nil {
		c.input.close()
	}
	for _, o := range c.outlets {
		o.owed = o.pending()
	}
	for _, o := range c.outlets {
		o.pump()
	}
	c.checkDrain()
}

// checkDrain ends the command when it is drained, or comes back later.
func (c *command) checkDrain() {
	if c.ended || !c.leaderEnded {
		return
	}
	open, owed := false, false
	for _, o := range c.outlets {
		open = open || !o.eof
		owed = owed || !o.eof && o.owed > 0
	}
	switch since := now() - c.endedAt; {
	case !open, c.session != nil && !owed, !owed && since >= int64(drainMost):
		c.finish()
	case owed && since >= int64(drainMost):
		// The buffer is full: the edge's acknowledgements bring us back here.
		c.i.timers.stop(&c.drain)
	default:
		wait := min(drainQuiet, time.Duration(int64(drainMost)-since))
		c.i.timers.set(&c.drain, max(wait, time.Millisecond), func() {
			if !c.owes() {
				c.finish()
			} else {
				c.checkDrain()
			}
		})
	}
}

func (c *command) owes() bool {
	for _, o := range c.outlets {
		if !o.eof && o.owed > 0 {
			return true
		}
	}
	return false
}

// finish fixes the exit. Outputs that are still open are discarded from now on.
func (c *command) finish() {
	if c.ended {
		return
	}
	c.ended = true
	c.i.live--
	c.i.timers.stop(&c.drain)
	c.i.timers.stop(&c.timeout)
	c.exit.OutputEnd = c.out.end
	c.exit.DurationMicros = (c.endedAt - c.began) / 1000
	c.exit.TimedOut = c.timedOut
	c.exit.Killed = c.signaled && c.exit.Signal != 0 && !c.timedOut
	for _, o := range c.outlets {
		o.detach()
	}
	c.outlets = nil
	if c.killFD >= 0 {
		rawClose(c.killFD)
		c.killFD = -1
	}
	if s := c.session; s != nil {
		s.current = nil
	}
	c.wantSend()
}

// wantSend puts the command in line when it has something for the edge.
func (c *command) wantSend() {
	if cc := c.i.current; cc != nil && c.attached && (c.next < c.out.end || c.ended && !c.told) {
		cc.activate(c)
	}
}

func (c *command) queued() *bool { return &c.isQueued }

// produce sends the next piece of output, or the exit when all output was sent.
func (c *command) produce(b []byte) ([]byte, bool) {
	if !c.attached || c.i.commands[c.id] != c {
		return b, false
	}
	if c.next < c.out.end {
		p := c.out.at(c.next)
		sp := c.spanAt(c.next)
		n := min(len(p), wire.MaxData, int(sp.end-c.next))
		var at int
		b, at = wire.Begin(b, wire.KindOutput, 0)
		b = (&wire.Output{Command: c.id, Offset: c.next, Stream: sp.stream}).AppendHead(b)
		b = wire.Finish(append(b, p[:n]...), at)
		c.next += int64(n)
		return b, c.next < c.out.end || c.ended && !c.told
	}
	if c.ended && !c.told {
		c.told = true
		var at int
		b, at = wire.Begin(b, wire.KindExited, 0)
		b = wire.Finish((&wire.Exited{Name: c.id, Exit: c.exit}).Append(b), at)
	}
	return b, false
}

func (c *command) spanAt(off int64) span {
	lo, hi := 0, len(c.spans)-1
	for lo < hi {
		if mid := (lo + hi) / 2; c.spans[mid].end <= off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return c.spans[lo]
}

// room tells whether output can be taken.
func (c *command) room(stream wire.Stream) bool {
	if len(c.spans) >= maxSpans && c.spans[len(c.spans)-1].stream != stream {
		return false
	}
	return c.out.space(minSpace) != nil
}

// took records n bytes that were put into the ring.
func (c *command) took(stream wire.Stream, n int) {
	c.out.commit(n)
	if k := len(c.spans); k > 0 && c.spans[k-1].stream == stream {
		c.spans[k-1].end = c.out.end
	} else {
		c.spans = append(c.spans, span{c.out.end, stream})
	}
	c.wantSend()
}

// ack forgets output below an offset and lets paused outlets go on.
func (c *command) ack(off int64) {
	if off > c.next {
		off = c.next // never sent: not stored either
	}
	c.out.drop(off)
	k := 0
	for k < len(c.spans) && c.spans[k].end <= c.out.start {
		k++
	}
	if k == len(c.spans) {
		c.spans = nil
	} else if k > 0 {
		c.spans = append(c.spans[:0], c.spans[k:]...)
	}
	c.resume()
}

func (c *command) resume() {
	for _, o := range c.outlets {
		if o.paused {
			o.pump()
		}
	}
	if c.leaderEnded {
		c.checkDrain()
	}
}

// release forgets an ended command.
func (c *command) release() {
	if !c.ended || c.i.commands[c.id] != c {
		return
	}
	delete(c.i.commands, c.id)
	c.out.free()
	c.spans = nil
}

func (c *command) status() wire.CommandStatus {
	s := wire.CommandStatus{
		ID: c.id, PID: int32(max(c.pid, -c.pid)), Ended: c.ended, Exit: c.exit,
		Buffered: c.out.start, End: c.out.end,
	}
	if c.session != nil {
		s.Session = c.session.id
	}
	return s
}
