package fake

import (
	"errors"
	"io"
	"sync"

	"github.com/opendsec/dsec/guest/wire"
)

// stream is the machine's end of a file, an archive or a port.
type stream struct {
	p  *peer
	id uint32

	mu      sync.Mutex
	changed sync.Cond
	in      []byte
	inEnd   bool
	grant   int
	credit  int
	gone    bool
}

var errAbandoned = errors.New("the stream was abandoned")

// open makes a stream and runs work on it in a goroutine; what work returns ends the stream.
func (p *peer) open(id uint32, reply func([]byte) []byte, work func(*stream) *wire.Error) {
	s := &stream{p: p, id: id, credit: wire.Window}
	s.changed.L = &s.mu
	p.mu.Lock()
	if p.streams == nil {
		p.mu.Unlock()
		return
	}
	p.streams[id] = s
	p.mu.Unlock()
	p.reply(id, reply)
	p.workers.Go(func() {
		err := work(s)
		p.send(wire.KindEnd, id, func(b []byte) []byte {
			if err != nil {
				return err.Append(b)
			}
			return b
		})
		p.mu.Lock()
		delete(p.streams, id)
		p.mu.Unlock()
	})
}

// arrive takes a frame of a stream; false = the protocol was broken.
func (p *peer) arrive(h wire.Header, b []byte) bool {
	p.mu.Lock()
	s := p.streams[h.ID]
	p.mu.Unlock()
	if s == nil {
		return true // crossed our End
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	switch h.Kind {
	case wire.KindData:
		if s.inEnd || len(s.in)+s.grant+len(b) > wire.Window {
			return false
		}
		s.in = append(s.in, b...)
	case wire.KindCredit:
		n, err := wire.DecodeCredit(b)
		if err != nil {
			return false
		}
		s.credit += n
	case wire.KindEnd:
		s.inEnd = true
	case wire.KindReset:
		s.gone = true
	}
	return true
}

func (s *stream) abandon() {
	s.mu.Lock()
	s.gone = true
	s.changed.Broadcast()
	s.mu.Unlock()
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	for !s.gone && len(s.in) == 0 && !s.inEnd {
		s.changed.Wait()
	}
	if s.gone || len(s.in) == 0 {
		gone := s.gone
		s.mu.Unlock()
		if gone {
			return 0, errAbandoned
		}
		return 0, io.EOF
	}
	n := copy(p, s.in)
	s.in = s.in[n:]
	s.grant += n
	grant := 0
	if s.grant >= wire.Window/4 {
		grant, s.grant = s.grant, 0
	}
	s.mu.Unlock()
	if grant > 0 {
		s.p.send(wire.KindCredit, s.id, func(b []byte) []byte { return wire.AppendCredit(b, grant) })
	}
	return n, nil
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		s.mu.Lock()
		for !s.gone && s.credit == 0 {
			s.changed.Wait()
		}
		if s.gone {
			s.mu.Unlock()
			return total, errAbandoned
		}
		n := min(len(p), s.credit, wire.MaxData)
		s.credit -= n
		s.mu.Unlock()
		chunk := p[:n]
		if !s.p.send(wire.KindData, s.id, func(b []byte) []byte { return append(b, chunk...) }) {
			return total, errAbandoned
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

// echoPort is the one port where something listens: it sends back what it gets.
const echoPort = 7

func (p *peer) dial(id uint32, port int32) {
	if port != echoPort {
		p.fail(id, refuse(wire.CodeRefused, "connection refused"))
		return
	}
	p.open(id, nil, func(s *stream) *wire.Error {
		_, _ = io.Copy(s, s)
		return nil
	})
}
