package initd

import (
	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Bounds of a connection, in bytes unless said.
const (
	readSize   = 64 << 10 // of the buffer that frames are taken from
	maxPending = 4 << 20  // queued replies at which no more requests are read
	maxQueued  = 16       // descriptors received ahead of their frame
	burst      = 8        // frames of output sent before the loop looks elsewhere

	smallReplies = 8 << 10              // replies that are sent together with output
	maxFrame     = wire.MaxData + 1<<10 // of output, its head included
)

// source has frames to send on a connection: output of a command, a stream.
type source interface {
	// produce appends at most one frame of at most wire.MaxData bytes of data to b; more tells whether
	// there is another one to send now.
	produce(b []byte) (frame []byte, more bool)
	// queued is the source's mark that it is in the list.
	queued() *bool
}

// conn is one connection of an edge. All of it belongs to the loop.
type conn struct {
	i     *Init
	fd    int
	epoch uint64
	hello bool // said; until then nothing else is served
	gone  bool

	serving bool   // receive is on the stack and refers to in
	in      []byte // mapped; in[r:w] is not yet parsed
	r, w    int
	fds     []int
	events  uint32 // asked of epoll

	out     []byte   // frames in order, out[sent:] not yet sent
	sent    int      //
	active  []source // with frames to send, in turn
	streams map[uint32]*stream
	dirty   bool // in the loop's list of connections to flush
}

func (i *Init) newConn(fd int) *conn {
	c := &conn{i: i, fd: fd, streams: make(map[uint32]*stream)}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 128<<10)
	c.events = unix.EPOLLIN
	if err := i.poll.add(fd, c.events, c); err != nil {
		unix.Close(fd)
		return nil
	}
	return c
}

func (c *conn) ready(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.receive()
	}
	if !c.gone && events&unix.EPOLLOUT != 0 {
		c.touch()
	}
}

// receive reads once and serves the whole frames.
func (c *conn) receive() {
	c.serving = true
	defer func() {
		if c.serving = false; c.gone {
			c.unmap()
		}
	}()
	if c.in == nil {
		b, err := unix.Mmap(-1, 0, readSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			c.close()
			return
		}
		c.in = b
	}
	var oob [64]byte
	n, oobn, flags, err := rawReceive(c.fd, c.in[c.w:], oob[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if oobn > 0 {
		c.take(oob[:oobn])
	}
	if err != nil || n == 0 || flags&unix.MSG_CTRUNC != 0 || len(c.fds) > maxQueued {
		c.close()
		return
	}
	c.w += n
	for !c.gone && c.w-c.r >= wire.HeaderSize {
		h, err := wire.ParseHeader(c.in[c.r:])
		if err != nil || len(c.fds) < h.FDs && c.w-c.r >= wire.HeaderSize+h.Size {
			c.close()
			return
		}
		size := wire.HeaderSize + h.Size
		if c.w-c.r < size {
			if !c.room(size) {
				c.close()
			}
			break
		}
		fds := c.fds[:h.FDs]
		c.fds = c.fds[h.FDs:]
		c.i.serve(c, h, c.in[c.r+wire.HeaderSize:c.r+size], fds)
		c.r += size
	}
	if c.gone {
		return
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
		if len(c.in) > readSize {
			c.unmap()
		}
	} else if c.w-c.r < wire.HeaderSize && !c.room(wire.HeaderSize) {
		// The beginning of a head at the buffer's very end leaves no place to read to, which would look like the peer's end.
		c.close()
		return
	}
	c.watch()
}

// room makes place for a frame of size bytes that begins at r.
func (c *conn) room(size int) bool {
	switch {
	case c.r+size <= len(c.in):
	case size <= len(c.in):
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	default:
		b, err := unix.Mmap(-1, 0, size+readSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return false
		}
		n := copy(b, c.in[c.r:c.w])
		c.unmap()
		c.in, c.r, c.w = b, 0, n
	}
	return true
}

// take keeps the descriptors that came with a message.
func (c *conn) take(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for k := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[k]); err == nil {
			c.fds = append(c.fds, fds...)
		}
	}
}

// watch asks epoll for what the connection can use now.
func (c *conn) watch() {
	events := uint32(0)
	if len(c.out)-c.sent < maxPending {
		events |= unix.EPOLLIN
	}
	if len(c.out) > c.sent {
		events |= unix.EPOLLOUT
	}
	if events != c.events {
		c.events = events
		c.i.poll.mod(c.fd, events)
	}
}

// reply, fail and send queue a frame.
func (c *conn) reply(id uint32, payload func([]byte) []byte) {
	c.send(wire.KindReply, id, payload)
}

func (c *conn) fail(id uint32, err *wire.Error) { c.send(wire.KindFail, id, err.Append) }

func (c *conn) send(kind wire.Kind, id uint32, payload func([]byte) []byte) {
	if c.gone {
		return
	}
	var at int
	c.out, at = wire.Begin(c.out, kind, id)
	if payload != nil {
		c.out = payload(c.out)
	}
	c.out = wire.Finish(c.out, at)
	c.touch()
}

// activate puts a source in line.
func (c *conn) activate(s source) {
	if q := s.queued(); !*q && !c.gone {
		*q = true
		c.active = append(c.active, s)
		c.touch()
	}
}

// touch makes the loop flush the connection after the current batch of events.
func (c *conn) touch() {
	if !c.dirty && !c.gone {
		c.dirty = true
		c.i.dirty = append(c.i.dirty, c)
	}
}

// flush sends: replies first, then the sources in turn, in as few writes as the buffer allows. It stops when the
// socket is full or after a burst.
func (c *conn) flush() {
	for n := 0; !c.gone; {
		b := c.i.scratch[:0]
		if rest := c.out[c.sent:]; len(rest) > smallReplies || len(rest) > 0 && len(c.active) == 0 {
			if !c.write(rest, true) {
				break
			}
			continue
		} else {
			b = append(b, rest...)
		}
		c.resetOut()
		again := false
		for len(c.active) > 0 && cap(b)-len(b) >= maxFrame {
			if n++; n > burst {
				again = true
				break
			}
			s := c.active[0]
			c.active = c.active[1:]
			*s.queued() = false
			frame, more := s.produce(b)
			if more {
				*s.queued() = true
				c.active = append(c.active, s)
			}
			b = frame
		}
		if len(b) > 0 && !c.write(b, false) {
			break
		}
		if again {
			c.touch()
			break
		}
		if len(c.active) == 0 && c.sent == len(c.out) {
			break
		}
	}
	if !c.gone {
		c.watch()
	}
}

// write sends what the socket takes. queued tells that b is c.out's rest; otherwise the rest is queued.
func (c *conn) write(b []byte, queued bool) bool {
	n, err := rawSend(c.fd, b)
	if err == unix.EAGAIN || err == unix.EINTR || err == unix.ENOBUFS {
		n, err = 0, nil
	}
	if err != nil {
		c.close()
		return false
	}
	if queued {
		c.sent += n
		return n > 0
	}
	if n < len(b) {
		c.out = append(c.out, b[n:]...)
	}
	return n == len(b)
}

func (c *conn) resetOut() {
	c.sent = 0
	if cap(c.out) > 64<<10 {
		c.out = nil
	} else {
		c.out = c.out[:0]
	}
}

// close drops the connection. Commands go on; streams end.
func (c *conn) close() {
	if c.gone {
		return
	}
	c.gone = true
	c.i.poll.del(c.fd)
	unix.Close(c.fd)
	for _, fd := range c.fds {
		unix.Close(fd)
	}
	c.fds, c.out, c.active = nil, nil, nil
	for _, s := range c.streams {
		s.abandon()
	}
	clear(c.streams)
	if !c.serving {
		c.unmap()
	}
	c.i.connClosed(c)
}

func (c *conn) unmap() {
	if c.in != nil {
		_ = unix.Munmap(c.in)
		c.in, c.r, c.w = nil, 0, 0
	}
}
