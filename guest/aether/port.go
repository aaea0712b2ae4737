package aether

import (
	"context"
	"io"
	"net"

	"strconv"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// DialPort connects to a TCP port on the sandbox's loopback. The connection also has CloseWrite.
func (c *Conn) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	m := wire.Control{Value: int32(port)}
	s, _, err := c.open(ctx, wire.KindDial, m.Append, false)
	if err != nil {
		return nil, err
	}
	return &portConn{s, portAddr(port)}, nil
}

type portConn struct {
	s    *stream
	addr portAddr
}

func (p *portConn) Read(b []byte) (int, error)  { return p.s.Read(b) }
func (p *portConn) Write(b []byte) (int, error) { return p.s.Write(b) }
func (p *portConn) CloseWrite() error           { return p.s.end() }
func (p *portConn) LocalAddr() net.Addr         { return p.addr }
func (p *portConn) RemoteAddr() net.Addr        { return p.addr }

func (p *portConn) Close() error {
	p.s.mu.Lock()
	over := p.s.outEnd || p.s.err != nil
	inEnd := p.s.inEnd
	p.s.mu.Unlock()
	if !over && !inEnd {
		// As with a socket, what was written still arrives.
		_ = p.s.end()
	}
	p.s.reset(net.ErrClosed)
	return nil
}

func (p *portConn) SetDeadline(t time.Time) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.readLimit.set(t)
	p.s.writeLimit.set(t)
	return nil
}

func (p *portConn) SetReadDeadline(t time.Time) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.readLimit.set(t)
	return nil
}

func (p *portConn) SetWriteDeadline(t time.Time) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.writeLimit.set(t)
	return nil
}

type portAddr uint16

func (a portAddr) Network() string { return "tcp" }
func (a portAddr) String() string  { return "sandbox:" + strconv.Itoa(int(a)) }

var (
	_ io.ReadCloser = reader{}
	_ Writer        = fileWriter{}
)
