package initd

import (
	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// inlet is the writing end of a command's stdin, or its terminal.
type inlet struct {
	i        *Init
	fd       int
	terminal *outlet // when not nil, the descriptor is this outlet's
	queue    []chunk
	held     int // bytes in queue
	watched  bool
	closed   bool // by an end of input
}

// chunk is an Input request that is not yet written.
type chunk struct {
	c    *conn
	id   uint32
	data []byte
	eof  bool
}

// maxHeldInput bounds what waits for a command that does not read, in bytes.
const maxHeldInput = 2 * wire.MaxInput

func (n *inlet) waiting() bool { return len(n.queue) > 0 }

// write takes an Input request; it is answered when its bytes are in the pipe.
func (n *inlet) write(c *conn, id uint32, data []byte, eof bool) {
	switch {
	case n.fd < 0 || n.closed:
		c.fail(id, &wire.Error{Code: wire.CodeClosed, Message: "stdin is closed"})
		return
	case n.held+len(data) > maxHeldInput || len(n.queue) >= 64:
		c.fail(id, &wire.Error{Code: wire.CodeExhausted, Message: "the command does not read its stdin; earlier input still waits"})
		return
	}
	if eof {
		n.closed = true
		if n.terminal != nil {
			data = append(data[:len(data):len(data)], 4) // what a terminal takes for the end of input
		}
	}
	if len(n.queue) == 0 {
		m, ok := n.put(data)
		if !ok {
			c.fail(id, &wire.Error{Code: wire.CodeClosed, Message: "stdin is closed"})
			return
		}
		if data = data[m:]; len(data) == 0 {
			n.done(chunk{c: c, id: id, eof: eof})
			return
		}
	}
	n.queue = append(n.queue, chunk{c, id, append([]byte(nil), data...), eof})
	n.held += len(data)
	n.watch()
}

// put writes what fits; false when nobody can read it any more.
func (n *inlet) put(data []byte) (int, bool) {
	total := 0
	for total < len(data) {
		m, err := unix.Write(n.fd, data[total:])
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			return total, false
		}
		total += m
	}
	return total, true
}

func (n *inlet) done(k chunk) {
	if k.c != nil {
		k.c.reply(k.id, nil)
	}
	if k.eof && n.terminal == nil {
		n.close()
	}
}

func (n *inlet) ready(uint32) { n.pump() }

// pump writes more of what waits.
func (n *inlet) pump() {
	for n.fd >= 0 && len(n.queue) > 0 {
		k := &n.queue[0]
		m, ok := n.put(k.data)
		if !ok {
			n.close()
			return
		}
		n.held -= m
		if k.data = k.data[m:]; len(k.data) > 0 {
			return
		}
		done := *k
		n.queue = n.queue[1:]
		n.done(done)
	}
	n.watch()
}

// watch has the poller tell when the command reads again.
func (n *inlet) watch() {
	switch {
	case n.fd < 0:
	case n.terminal != nil:
		if !n.terminal.paused {
			n.i.poll.mod(n.fd, n.terminal.interest())
		}
	case n.waiting() && !n.watched:
		n.watched = n.i.poll.add(n.fd, unix.EPOLLOUT, n) == nil
	case !n.waiting() && n.watched:
		n.watched = false
		n.i.poll.del(n.fd)
	}
}

// close closes a pipe; a terminal stays open for its output.
func (n *inlet) close() {
	if n.fd >= 0 && n.terminal == nil {
		if n.watched {
			n.i.poll.del(n.fd)
		}
		unix.Close(n.fd)
		n.fd = -1
	}
	n.closed = true
	n.failAll()
}

func (n *inlet) failAll() {
	for _, k := range n.queue {
		if k.c != nil {
			k.c.fail(k.id, &wire.Error{Code: wire.CodeClosed, Message: "the command closed its stdin"})
		}
	}
	n.queue, n.held = nil, 0
}
