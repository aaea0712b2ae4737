package initd

import (
	"io"
	"sync"

	"github.com/opendsec/dsec/guest/wire"
)

// stream carries the bytes of one file, archive or port on a connection. The loop owns the connection's side;
// a worker (files, archives) or the loop itself (ports) reads and writes the other, under mu.
type stream struct {
	id       uint32
	c        *conn
	twoWay   bool // both directions carry data; else the one that does not has ended from the start
	isQueued bool // loop only
	credit   int  // loop only: bytes that the edge takes
	ended    bool // loop only: our End was sent

	mu      sync.Mutex
	changed sync.Cond // of in, inEnd, gone, and of space in out
	out     ring      // to the edge
	outEnd  bool      // nothing follows out
	err     *wire.Error
	in      ring // from the edge
	inEnd   bool
	grant   int    // bytes taken from in, not yet credited
	gone    bool   // abandoned by the edge, or its connection closed
	posted  bool   // in the loop's list of streams to look at
	onLoop  func() // ports: called instead of waking a worker when something changed
}

// errGone tells a worker that nobody wants the stream any more.
var errGone = &wire.Error{Code: wire.CodeClosed, Message: "the stream was abandoned"}

func (c *conn) newStream(id uint32, twoWay bool) *stream {
	s := &stream{id: id, c: c, twoWay: twoWay, credit: wire.Window}
	s.changed.L = &s.mu
	s.out = ring{limit: wire.Window, budget: &c.i.streamMemory}
	s.in = ring{limit: wire.Window, budget: &c.i.streamMemory}
	c.streams[id] = s
	return s
}

// Write gives bytes to the edge and waits for room.
func (s *stream) Write(p []byte) (int, error) {
	total := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(p) > 0 {
		if s.gone {
			return total, errGone
		}
		n := s.out.put(p)
		if n == 0 {
			s.changed.Wait()
			continue
		}
		total += n
		p = p[n:]
		s.post()
	}
	return total, nil
}

// Read takes bytes of the edge and waits for some; io.EOF follows the edge's End.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.gone:
			return 0, errGone
		case !s.in.empty():
			n := copy(p, s.in.at(s.in.start))
			s.consume(n)
			return n, nil
		case s.inEnd:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

// consume drops n bytes of in and lets the edge send as many more. mu is held.
func (s *stream) consume(n int) {
	s.in.drop(s.in.start + int64(n))
	if s.grant += n; s.grant >= wire.Window/4 {
		s.post()
	}
}

// end says that nothing more will be written, and how it ended.
func (s *stream) end(err *wire.Error) {
	s.mu.Lock()
	s.outEnd, s.err = true, err
	s.post()
	s.mu.Unlock()
}

// post makes the loop look at the stream. mu is held.
func (s *stream) post() {
	if !s.posted && !s.gone {
		s.posted = true
		s.c.i.post(s)
	}
}

// attend is the loop's look: credit for the edge, and a place in line to send.
func (s *stream) attend() {
	s.mu.Lock()
	s.posted = false
	grant := s.grant
	s.grant = 0
	send := !s.out.empty() && s.credit > 0 || s.outEnd && s.out.empty()
	gone := s.gone
	s.mu.Unlock()
	if gone || s.ended {
		return
	}
	if grant > 0 {
		s.c.send(wire.KindCredit, s.id, func(b []byte) []byte { return wire.AppendCredit(b, grant) })
	}
	if send {
		s.c.activate(s)
	}
}

func (s *stream) queued() *bool { return &s.isQueued }

func (s *stream) produce(b []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.ended {
		return b, false
	}
	if p := s.out.at(s.out.start); len(p) > 0 {
		n := min(len(p), wire.MaxData, s.credit)
		if n == 0 {
			return b, false
		}
		b = wire.AppendHeader(b, wire.KindData, s.id, 0, n)
		b = append(b, p[:n]...)
		s.credit -= n
		s.out.drop(s.out.start + int64(n))
		s.wake()
		if s.onLoop != nil {
			s.c.i.call(s.onLoop) // there is room again; not now, mu is held
		}
		return b, !s.out.empty() && s.credit > 0 || s.outEnd && s.out.empty()
	}
	if s.outEnd {
		s.ended = true
		var at int
		b, at = wire.Begin(b, wire.KindEnd, s.id)
		if s.err != nil {
			b = s.err.Append(b)
		}
		b = wire.Finish(b, at)
		if !s.twoWay || s.inEnd {
			s.forget()
		}
	}
	return b, false
}

// wake tells the other side that something changed. mu is held.
func (s *stream) wake() {
	if s.onLoop == nil {
		s.changed.Broadcast()
	}
}

// forget drops the stream on the loop's side. mu is held. What a worker still holds it lets go of later.
func (s *stream) forget() {
	delete(s.c.streams, s.id)
	s.gone = true
	s.out.free()
	if s.onLoop == nil { // a port still hands on what the edge had sent
		s.in.free()
	}
	s.wake()
}

// abandon ends the stream because the edge does not want it any more.
func (s *stream) abandon() {
	s.mu.Lock()
	s.forget()
	f := s.onLoop
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// serveStream handles the frames of streams. False means that the edge broke the protocol.
func (c *conn) serveStream(h wire.Header, p []byte) bool {
	s := c.streams[h.ID]
	if s == nil {
		return true // crossed our End on the way
	}
	switch h.Kind {
	case wire.KindCredit:
		n, err := wire.DecodeCredit(p)
		if err != nil || s.credit+n > wire.Window {
			return false
		}
		s.credit += n
		s.mu.Lock()
		s.post()
		s.mu.Unlock()
	case wire.KindReset:
		delete(c.streams, h.ID)
		s.abandon()
	case wire.KindData, wire.KindEnd:
		s.mu.Lock()
		if s.inEnd || len(p) > wire.MaxData || h.Kind == wire.KindEnd && len(p) != 0 ||
			s.in.len()+s.grant+len(p) > wire.Window {
			s.mu.Unlock()
			return false
		}
		if h.Kind == wire.KindEnd {
			s.inEnd = true
			if s.ended {
				s.forget()
			}
		} else if s.in.put(p) < len(p) {
			err := &wire.Error{Code: wire.CodeExhausted, Message: "no memory for one more stream"}
			c.send(wire.KindEnd, s.id, err.Append)
			s.forget()
		} else if s.twoWay && s.onLoop == nil {
			s.consume(s.in.len()) // its port is closed already
		}
		s.wake()
		f := s.onLoop
		s.mu.Unlock()
		if f != nil {
			f()
		}
	}
	return true
}
