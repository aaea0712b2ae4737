package aether

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// stream is one open file, archive or port.
type stream struct {
	c  *Conn
	id uint32

	mu      sync.Mutex
	changed sync.Cond
	in      [][]byte // received, not yet read
	held    int      // bytes in in
	grant   int      // bytes read, not yet credited
	credit  int      // bytes that dsec-init takes
	inEnd   bool     // dsec-init's End came
	endErr  error    // what it carried
	outEnd  bool     // our End was sent
	err     error    // closed or failed: nothing more goes either way
	stop    func() bool

	readLimit, writeLimit deadline
}

// open opens a stream that lives no longer than ctx, when bound.
func (c *Conn) open(ctx context.Context, kind wire.Kind, payload func([]byte) []byte, bound bool) (*stream, []byte, error) {
	s := &stream{c: c, credit: wire.Window}
	s.changed.L = &s.mu
	s.readLimit.s, s.writeLimit.s = s, s
	reply, err := c.callStream(ctx, kind, payload, nil, s)
	if err != nil {
		return nil, nil, err
	}
	if bound {
		stop := context.AfterFunc(ctx, func() { s.reset(context.Cause(ctx)) })
		s.mu.Lock()
		s.stop = stop
		s.mu.Unlock()
	}
	return s, reply, nil
}

func (c *Conn) forget(s *stream) {
	c.mu.Lock()
	if c.streams[s.id] == s {
		delete(c.streams, s.id)
	}
	c.mu.Unlock()
}

// arrive takes a frame; false means that dsec-init broke the protocol. It does not block.
func (s *stream) arrive(kind wire.Kind, p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	switch kind {
	case wire.KindData:
		if s.inEnd || len(p) > wire.MaxData || s.held+s.grant+len(p) > wire.Window {
			return false
		}
		if s.err == nil && len(p) > 0 {
			s.in = append(s.in, append([]byte(nil), p...))
			s.held += len(p)
		}
	case wire.KindCredit:
		n, err := wire.DecodeCredit(p)
		if err != nil || s.credit+n > wire.Window {
			return false
		}
		s.credit += n
	case wire.KindEnd:
		if s.inEnd {
			return false
		}
		s.inEnd = true
		if len(p) > 0 {
			s.endErr = wire.DecodeError(p)
		}
		// Of a two-way stream the other direction may go on; dsec-init ignores what it does not want.
		if s.outEnd || s.endErr != nil {
			s.c.forget(s)
		}
	}
	return true
}

// fail ends the stream without telling dsec-init.
func (s *stream) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	stop := s.stop
	s.stop = nil
	s.in = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// reset abandons the stream on both sides.
func (s *stream) reset(err error) {
	s.mu.Lock()
	over := s.err != nil || s.inEnd && s.outEnd
	s.mu.Unlock()
	s.fail(err)
	if !over {
		s.c.forget(s)
		s.c.w.queue(wire.KindReset, s.id, nil)
	}
}

// Read reads what dsec-init sends; io.EOF after its End without an error.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return 0, s.err
		case len(s.in) > 0:
			n := copy(p, s.in[0])
			if s.in[0] = s.in[0][n:]; len(s.in[0]) == 0 {
				s.in[0] = nil
				s.in = s.in[1:]
			}
			s.held -= n
			if s.grant += n; s.grant >= wire.Window/4 && !s.inEnd {
				grant := s.grant
				s.grant = 0
				s.c.w.queue(wire.KindCredit, s.id, func(b []byte) []byte { return wire.AppendCredit(b, grant) })
			}
			return n, nil
		case s.inEnd && s.endErr != nil:
			return 0, s.endErr
		case s.inEnd:
			return 0, io.EOF
		case s.readLimit.over():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		s.changed.Wait()
	}
}

// Write sends p, as the window allows.
func (s *stream) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n, err := s.allowance(min(len(p), wire.MaxData))
		if err != nil {
			return total, err
		}
		chunk := p[:n]
		err = s.c.w.request(context.Background(), wire.KindData, s.id, func(b []byte) []byte { return append(b, chunk...) }, nil)
		if err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// allowance waits for credit and takes up to want of it.
func (s *stream) allowance(want int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return 0, s.err
		case s.outEnd:
			return 0, errors.New("write after the end of the stream")
		case s.inEnd && s.endErr != nil:
			return 0, s.endErr
		case s.writeLimit.over():
			return 0, os.ErrDeadlineExceeded
		case s.credit > 0:
			n := min(want, s.credit)
			s.credit -= n
			return n, nil
		}
		s.changed.Wait()
	}
}

// end sends End: nothing more will be written.
func (s *stream) end() error {
	s.mu.Lock()
	if s.err != nil || s.outEnd {
		defer s.mu.Unlock()
		return s.err
	}
	if s.outEnd = true; s.inEnd {
		s.c.forget(s)
	}
	s.mu.Unlock()
	return s.c.w.request(context.Background(), wire.KindEnd, s.id, nil, nil)
}

// wait waits for dsec-init's End and returns what it carried.
func (s *stream) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.reset(context.Cause(ctx)) })
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && !s.inEnd {
		s.changed.Wait()
	}
	if s.inEnd {
		return s.endErr
	}
	return s.err
}

// deadline wakes its stream when it is over.
type deadline struct {
	s     *stream
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set is called with the stream's mu held.
func (d *deadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.at = t; !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			d.s.mu.Lock()
			d.s.changed.Broadcast()
			d.s.mu.Unlock()
		})
	}
	d.s.changed.Broadcast()
}
