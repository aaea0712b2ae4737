package initd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Bounds of ports.
const (
	maxPorts    = 256
	dialLimit   = 10 * time.Second
	lingerLimit = 5 * time.Second // for what the edge had sent before it went away
)

// port is a connection to a server in the sandbox. The loop moves its bytes.
type port struct {
	i      *Init
	s      *stream
	fd     int // -1 = closed
	number int32
	v6     bool
	open   bool // connected, and the edge was told
	rdone  bool // the server has ended its direction
	wdone  bool // we have ended ours
	events uint32
	limit  timer
}

// dial serves Dial: 127.0.0.1, then ::1.
func (i *Init) dial(c *conn, id uint32, number int32) error {
	if number < 1 || number > 65535 {
		return &wire.Error{Code: wire.CodeInvalid, Message: "a port is a number from 1 to 65535"}
	}
	if i.ports >= maxPorts {
		return &wire.Error{Code: wire.CodeExhausted, Message: "too many connections to ports are open in this sandbox"}
	}
	p := &port{i: i, fd: -1, number: number}
	p.s = c.newStream(id, true)
	p.s.onLoop = p.pump
	i.ports++
	i.timers.set(&p.limit, dialLimit, func() { p.refuse(unix.ETIMEDOUT) })
	p.connect()
	return nil
}

func (p *port) connect() {
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(p.number), Addr: [4]byte{127, 0, 0, 1}})
	if p.v6 {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(p.number), Addr: [16]byte{15: 1}}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		p.failed(err)
		return
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err = unix.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		p.failed(err)
		return
	}
	p.fd, p.events = fd, unix.EPOLLOUT
	if err := p.i.poll.add(fd, p.events, p); err != nil {
		unix.Close(fd)
		p.fd = -1
		p.failed(err)
	}
}

// failed goes on with the other family, or gives up.
func (p *port) failed(err error) {
	p.drop()
	if !p.v6 {
		p.v6 = true
		p.connect()
		return
	}
	if err == unix.EAFNOSUPPORT || err == unix.EADDRNOTAVAIL {
		err = unix.ECONNREFUSED // a sandbox without IPv6: what the first address said
	}
	p.refuse(err)
}

func (p *port) refuse(err error) {
	code := wire.CodeInternal
	switch err {
	case unix.ECONNREFUSED, unix.ETIMEDOUT, unix.ENETUNREACH, unix.EHOSTUNREACH:
		code = wire.CodeRefused
	case unix.EMFILE, unix.ENOMEM:
		code = wire.CodeExhausted
	}
	s := p.s
	p.close()
	s.mu.Lock()
	gone := s.gone
	s.forget()
	s.mu.Unlock()
	if !gone {
		s.c.fail(s.id, &wire.Error{Code: code, Message: "connect to the sandbox's port: " + err.Error()})
	}
}

func (p *port) ready(events uint32) {
	if p.fd < 0 {
		return
	}
	if !p.open {
		if v, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || v != 0 {
			p.failed(unix.Errno(v))
			return
		}
		p.i.timers.stop(&p.limit)
		p.open = true
		p.s.c.reply(p.s.id, nil)
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		p.fill()
	}
	p.pump()
}

// fill moves bytes from the server towards the edge.
func (p *port) fill() {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.rdone || s.gone {
		return
	}
	b := s.out.space(minSpace)
	if b == nil {
		return
	}
	n, err := unix.Read(p.fd, b)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		s.out.drop(s.out.start)
	case err != nil || n == 0:
		s.out.drop(s.out.start)
		p.rdone = true
		if s.outEnd = true; err != nil {
			s.err = &wire.Error{Code: wire.CodeClosed, Message: "read from the sandbox's port: " + err.Error()}
			p.wdone = true
		}
		s.post()
	default:
		s.out.commit(n)
		s.post()
	}
}

// pump moves bytes from the edge to the server, and asks the poller for what can go on. It is called whenever
// something has changed on either side.
func (p *port) pump() {
	if p.fd < 0 {
		return
	}
	s := p.s
	s.mu.Lock()
	for p.open && !p.wdone && !s.in.empty() {
		n, err := unix.SendmsgN(p.fd, s.in.at(s.in.start), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EAGAIN || err == unix.EINTR {
			break
		}
		if err != nil {
			p.wdone = true
			s.in.drop(s.in.end)
			break
		}
		s.consume(n)
	}
	if p.wdone && !s.in.empty() {
		s.consume(s.in.len()) // the server does not want it
	}
	if p.open && !p.wdone && s.in.empty() && (s.inEnd || s.gone) {
		p.wdone = true
		_ = unix.Shutdown(p.fd, unix.SHUT_WR)
	}
	var events uint32
	if !p.rdone && !s.gone && p.open && s.out.space(1) != nil {
		events |= unix.EPOLLIN
		s.out.drop(s.out.start)
	}
	if !p.open || !p.wdone && !s.in.empty() {
		events |= unix.EPOLLOUT
	}
	over := p.wdone && (p.rdone || s.gone) || s.gone && !p.open
	linger := s.gone && !over
	s.mu.Unlock()
	if over {
		p.close()
		return
	}
	if linger && p.limit.index == 0 {
		p.i.timers.set(&p.limit, lingerLimit, p.close)
	}
	p.watch(events)
}

// watch keeps the descriptor out of the poller while nothing is asked: a hang-up is always reported.
func (p *port) watch(events uint32) {
	switch {
	case events == p.events:
	case events == 0:
		p.i.poll.del(p.fd)
	case p.events == 0:
		_ = p.i.poll.add(p.fd, events, p)
	default:
		p.i.poll.mod(p.fd, events)
	}
	p.events = events
}

// drop closes the socket.
func (p *port) drop() {
	if p.fd >= 0 {
		if p.events != 0 {
			p.i.poll.del(p.fd)
		}
		unix.Close(p.fd)
		p.fd, p.events = -1, 0
	}
}

func (p *port) close() {
	p.i.timers.stop(&p.limit)
	p.drop()
	if p.s.onLoop != nil {
		p.i.ports--
		p.s.mu.Lock()
		p.s.onLoop = nil
		if p.s.gone {
			p.s.in.free()
		}
		p.s.mu.Unlock()
	}
}
