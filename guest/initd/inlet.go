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
	writers  wire.Writers
	lost     bool // something that was taken could not be written
}

// chunk is an Input request that is not yet written.
type chunk struct {
	c    *conn
	id   uint32
	data []byte
	eof  bool
	also []waiter // those who sent it, or what came before it, again
}

// waiter waits for the answer to a request that was made twice.
type waiter struct {
	c  *conn
	id uint32
}

// maxHeldInput bounds what waits for a command that does not read, in bytes.
const maxHeldInput = 2 * wire.MaxInput

func (n *inlet) waiting() bool { return len(n.queue) > 0 }

// take takes an Input request: what of it is new. One that was taken before is answered when its bytes are in the pipe.
func (n *inlet) take(c *conn, id uint32, m *wire.Input) {
	data, repeated, err := n.writers.Fresh(m)
	switch {
	case err != nil:
		c.fail(id, err)
	case repeated:
		n.again(c, id)
	case n.write(c, id, data, m.EOF):
		n.writers.Took(m)
	}
}

// again answers a request whose bytes were taken before: when those that still wait are written.
func (n *inlet) again(c *conn, id uint32) {
	switch {
	case n.lost:
		c.fail(id, &wire.Error{Code: wire.CodeClosed, Message: "the command closed its stdin"})
	case len(n.queue) == 0:
		c.reply(id, nil)
	default:
		last := &n.queue[len(n.queue)-1]
		if len(last.also) >= maxWaiters {
			c.fail(id, &wire.Error{Code: wire.CodeExhausted, Message: "the command does not read its stdin; earlier input still waits"})
			return
		}
		last.also = append(last.also, waiter{c, id})
	}
}

// maxWaiters bounds how many wait for the same bytes.
const maxWaiters = 64

// write takes bytes, and tells whether it did; the request is answered when they are in the pipe.
func (n *inlet) write(c *conn, id uint32, data []byte, eof bool) bool {
	switch {
	case n.fd < 0 || n.closed:
		c.fail(id, &wire.Error{Code: wire.CodeClosed, Message: "stdin is closed"})
		return false
	case n.held+len(data) > maxHeldInput || len(n.queue) >= 64:
		c.fail(id, &wire.Error{Code: wire.CodeExhausted, Message: "the command does not read its stdin; earlier input still waits"})
		return false
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
			return false
		}
		if data = data[m:]; len(data) == 0 {
			n.done(chunk{c: c, id: id, eof: eof})
			return true
		}
	}
	n.queue = append(n.queue, chunk{c: c, id: id, data: append([]byte(nil), data...), eof: eof})
	n.held += len(data)
	n.watch()
	return true
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
	for _, w := range k.also {
		w.c.reply(w.id, nil)
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
		n.lost = true
		if k.c != nil {
			k.also = append(k.also, waiter{k.c, k.id})
		}
		for _, w := range k.also {
			w.c.fail(w.id, &wire.Error{Code: wire.CodeClosed, Message: "the command closed its stdin"})
		}
	}
	n.queue, n.held = nil, 0
}
