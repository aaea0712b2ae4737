package fake

import (
	"io"
	"net"
	"sync"

	"github.com/opendsec/dsec/guest/wire"
)

// peer is the machine's end of one connection.
type peer struct {
	m  *Machine
	nc net.Conn

	wmu sync.Mutex // one frame at a time

	mu      sync.Mutex
	streams map[uint32]*stream
	workers sync.WaitGroup
}

func (p *peer) close() { _ = p.nc.Close() }

// send writes one frame; what cannot be sent is sent again on the next connection, or not wanted any more.
func (p *peer) send(kind wire.Kind, id uint32, payload func([]byte) []byte) bool {
	b, at := wire.Begin(nil, kind, id)
	if payload != nil {
		b = payload(b)
	}
	b = wire.Finish(b, at)
	p.wmu.Lock()
	defer p.wmu.Unlock()
	_, err := p.nc.Write(b)
	return err == nil
}

func (p *peer) reply(id uint32, payload func([]byte) []byte) { p.send(wire.KindReply, id, payload) }

func (p *peer) fail(id uint32, err *wire.Error) { p.send(wire.KindFail, id, err.Append) }

// answer replies without content, or with the error.
func (p *peer) answer(id uint32, err *wire.Error) {
	if err != nil {
		p.fail(id, err)
		return
	}
	p.reply(id, nil)
}

func (p *peer) serve() {
	defer p.closeStreams()
	defer p.close()
	var head [wire.HeaderSize]byte
	for {
		if _, err := io.ReadFull(p.nc, head[:]); err != nil {
			return
		}
		h, err := wire.ParseHeader(head[:])
		if err != nil {
			return
		}
		b := make([]byte, h.Size)
		if _, err := io.ReadFull(p.nc, b); err != nil {
			return
		}
		if !p.handle(h, b) {
			return
		}
	}
}

func (p *peer) closeStreams() {
	p.mu.Lock()
	streams := p.streams
	p.streams = nil
	p.mu.Unlock()
	for _, s := range streams {
		s.abandon()
	}
	p.workers.Wait()
}

func refuse(code wire.Code, msg string) *wire.Error { return &wire.Error{Code: code, Message: msg} }

// handle serves one frame; false ends the connection.
func (p *peer) handle(h wire.Header, b []byte) bool {
	switch h.Kind {
	case wire.KindHello:
		p.reply(h.ID, nil)
	case wire.KindStart:
		var m wire.Start
		if m.Decode(b) != nil {
			return false
		}
		p.m.start(p, h.ID, &m)
	case wire.KindList:
		p.reply(h.ID, func(b []byte) []byte { return wire.AppendStatuses(b, p.m.statuses()) })
	case wire.KindInput:
		var m wire.Input
		if m.Decode(b) != nil {
			return false
		}
		p.m.input(p, h.ID, &m)
	case wire.KindOpenSession:
		var m wire.OpenSession
		if m.Decode(b) != nil {
			return false
		}
		p.answer(h.ID, p.m.openSession(&m))
	case wire.KindResume, wire.KindSignal, wire.KindResize, wire.KindAck, wire.KindRelease, wire.KindCloseSession, wire.KindDial, wire.KindHold:
		var m wire.Control
		if m.Decode(b) != nil {
			return false
		}
		p.control(h, &m)
	case wire.KindStat, wire.KindListDir, wire.KindMkdir, wire.KindRename, wire.KindRemove, wire.KindOpenRead, wire.KindOpenTar, wire.KindUnpack:
		var m wire.Path
		if m.Decode(b) != nil {
			return false
		}
		p.path(h, &m)
	case wire.KindOpenWrite:
		var m wire.OpenWrite
		if m.Decode(b) != nil {
			return false
		}
		p.openWrite(h.ID, &m)
	case wire.KindData, wire.KindCredit, wire.KindEnd, wire.KindReset:
		return p.arrive(h, b)
	default:
		return false
	}
	return true
}

func (p *peer) control(h wire.Header, m *wire.Control) {
	if h.Kind == wire.KindDial {
		p.dial(h.ID, m.Value)
		return
	}
	if h.Kind == wire.KindHold {
		p.m.hold(m.Flag)
		p.reply(h.ID, nil)
		return
	}
	if h.Kind == wire.KindCloseSession {
		p.answer(h.ID, p.m.closeSession(m.Name))
		return
	}
	p.m.mu.Lock()
	c := p.m.commands[m.Name]
	p.m.mu.Unlock()
	if c == nil {
		if h.Kind != wire.KindAck && h.Kind != wire.KindRelease {
			p.fail(h.ID, refuse(wire.CodeNotFound, "no command "+m.Name))
		}
		return
	}
	switch h.Kind {
	case wire.KindAck:
		c.ack(m.Offset)
	case wire.KindRelease:
		p.m.release(c)
	case wire.KindResume:
		p.reply(h.ID, nil)
		c.attach(p, m.Offset)
	case wire.KindSignal:
		p.answer(h.ID, c.signal(m.Value, m.Flag))
	case wire.KindResize:
		p.fail(h.ID, refuse(wire.CodeInvalid, "the command has no terminal"))
	}
}
