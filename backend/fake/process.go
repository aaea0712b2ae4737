package fake

import (
	"context"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// bufferLimit is how much unacknowledged output a process may have before it waits.
const bufferLimit = 256 << 10

// process is one command.
type process struct {
	m       *Machine
	id      string
	pid     int32
	session string
	began   time.Time
	ctx     context.Context // ends when the process is killed
	cancel  context.CancelFunc
	stdin   *inbox

	mu       sync.Mutex
	room     sync.Cond
	pieces   []piece // not yet acknowledged
	end      int64
	start    int64
	next     int64
	peer     *peer // that wants the output
	exit     *wire.Exit
	told     bool
	killedBy int32
	byEdge   bool
	timedOut bool
	ignores  map[int32]bool
	timer    *time.Timer
	due      time.Time
	left     time.Duration // of the timeout, while it is held
}

// setTimeout arms the deadline, if any.
func (c *process) setTimeout(d time.Duration) {
	if d <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = time.Now().Add(d)
	c.timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		c.timedOut = c.exit == nil
		c.mu.Unlock()
		c.kill(9, false)
	})
}

// hold stops the clocks of all timeouts, or lets them run on.
func (m *Machine) hold(hold bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.commands {
		c.mu.Lock()
		var left time.Duration
		if hold && c.timer != nil && c.timer.Stop() {
			c.left = max(time.Until(c.due), time.Millisecond)
		} else if !hold {
			left, c.left = c.left, 0
		}
		c.mu.Unlock()
		c.setTimeout(left)
	}
}

type piece struct {
	offset int64
	stream wire.Stream
	data   []byte
}

// start serves Start.
func (m *Machine) start(p *peer, id uint32, req *wire.Start) {
	state, env, err := m.stateFor(req)
	if err != nil {
		p.fail(id, err)
		return
	}
	script := req.Shell
	if len(req.Argv) > 0 && !knownProgram(req.Argv[0]) {
		p.fail(id, refuse(wire.CodeNoProgram, "no program "+req.Argv[0]))
		return
	}
	c := &process{m: m, id: req.ID, session: req.Session, began: time.Now(), peer: p, ignores: map[int32]bool{}}
	c.room.L = &c.mu
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if req.Stdin {
		c.stdin = newInbox()
	}
	m.mu.Lock()
	if m.dead || m.commands[req.ID] != nil {
		m.mu.Unlock()
		c.cancel()
		p.fail(id, refuse(wire.CodeExists, "a command of this id exists"))
		return
	}
	m.pids++
	c.pid = m.pids
	m.commands[req.ID] = c
	m.mu.Unlock()
	p.reply(id, (&wire.Started{PID: c.pid}).Append)
	c.setTimeout(time.Duration(req.TimeoutMillis) * time.Millisecond)
	go func() { // ends when the machine does, at the latest
		sh := &shell{c: c, state: state, env: env}
		code, exits := sh.run(req.Argv, script)
		c.finish(code, exits && req.Session != "")
	}()
}

// write adds output and waits while too much is unacknowledged; false = killed.
func (c *process) write(stream wire.Stream, data []byte) bool {
	for len(data) > 0 {
		if !c.m.awaitThaw() || c.ctx.Err() != nil {
			return false
		}
		n := min(len(data), wire.MaxData)
		c.mu.Lock()
		for c.end-c.start >= bufferLimit && c.ctx.Err() == nil {
			c.room.Wait()
		}
		c.pieces = append(c.pieces, piece{c.end, stream, append([]byte(nil), data[:n]...)})
		c.end += int64(n)
		c.flush()
		c.mu.Unlock()
		data = data[n:]
	}
	return true
}

// flush sends what the connection has not got. c.mu is held.
func (c *process) flush() {
	if c.peer == nil {
		return
	}
	for _, p := range c.pieces {
		end := p.offset + int64(len(p.data))
		if end <= c.next {
			continue
		}
		data, offset := p.data, p.offset
		if offset < c.next {
			data, offset = data[c.next-offset:], c.next
		}
		out := wire.Output{Command: c.id, Offset: offset, Stream: p.stream}
		if !c.peer.send(wire.KindOutput, 0, func(b []byte) []byte { return append(out.AppendHead(b), data...) }) {
			c.peer = nil
			return
		}
		c.next = end
	}
	if c.exit != nil && !c.told {
		c.told = c.peer.send(wire.KindExited, 0, (&wire.Exited{Name: c.id, Exit: *c.exit}).Append)
	}
}

func (c *process) attach(p *peer, from int64) {
	c.mu.Lock()
	c.peer, c.next, c.told = p, from, false
	c.flush()
	c.mu.Unlock()
}

func (c *process) detach() {
	c.mu.Lock()
	c.peer = nil
	c.mu.Unlock()
}

func (c *process) ack(offset int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pieces) > 0 && c.pieces[0].offset+int64(len(c.pieces[0].data)) <= min(offset, c.next) {
		c.start = c.pieces[0].offset + int64(len(c.pieces[0].data))
		c.pieces = c.pieces[1:]
	}
	c.room.Broadcast()
}

// signal serves Signal.
func (c *process) signal(sig int32, tree bool) *wire.Error {
	c.mu.Lock()
	ended, ignored := c.exit != nil, c.ignores[sig]
	c.byEdge = true
	c.mu.Unlock()
	if ended {
		return refuse(wire.CodeNotFound, "the command has ended")
	}
	if !ignored {
		c.kill(sig, false)
	}
	return nil
}

// kill ends the process by a signal.
func (c *process) kill(sig int32, machineGone bool) {
	c.mu.Lock()
	if c.killedBy == 0 && c.exit == nil {
		c.killedBy = sig
	}
	if machineGone {
		c.peer = nil
	}
	c.cancel()
	c.room.Broadcast()
	c.mu.Unlock()
	if c.stdin != nil {
		c.stdin.close()
	}
}

func (c *process) finish(code int32, sessionEnds bool) {
	c.cancel()
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	x := wire.Exit{Code: code, OutputEnd: c.end, DurationMicros: time.Since(c.began).Microseconds(), TimedOut: c.timedOut, SessionEnded: sessionEnds}
	if c.killedBy != 0 {
		x.Code, x.Signal = 0, c.killedBy
		x.Killed = c.byEdge && !c.timedOut
	}
	c.exit = &x
	c.flush()
	c.mu.Unlock()
	if sessionEnds {
		c.m.sessionEnded(c.session, x)
	}
}

func (m *Machine) release(c *process) {
	c.mu.Lock()
	ended := c.exit != nil
	c.mu.Unlock()
	if !ended {
		return
	}
	m.mu.Lock()
	if m.commands[c.id] == c {
		delete(m.commands, c.id)
	}
	m.mu.Unlock()
}

func (m *Machine) statuses() []wire.CommandStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []wire.CommandStatus
	for _, c := range m.commands {
		c.mu.Lock()
		s := wire.CommandStatus{ID: c.id, PID: c.pid, Session: c.session, Buffered: c.start, End: c.end}
		if c.exit != nil {
			s.Ended, s.Exit = true, *c.exit
		}
		c.mu.Unlock()
		list = append(list, s)
	}
	return list
}

// input serves Input. It answers at once: the inbox takes everything.
func (m *Machine) input(p *peer, id uint32, req *wire.Input) {
	m.mu.Lock()
	c := m.commands[req.Command]
	m.mu.Unlock()
	switch {
	case c == nil:
		p.fail(id, refuse(wire.CodeNotFound, "no command "+req.Command))
	case c.stdin == nil:
		p.fail(id, refuse(wire.CodeInvalid, "the command was started without stdin"))
	default:
		if err := c.stdin.take(req); err != nil {
			p.fail(id, err)
			return
		}
		p.reply(id, nil)
	}
}
