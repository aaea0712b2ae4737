package machine

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// bridge carries frames between the channel's port and dsec-init's socket. On the way it puts descriptors beside those
// that need them: the root beside a claim, a control group beside the start of a command or a session.
type bridge struct {
	port   *port
	socket string             // of dsec-init
	closed func(token []byte) // dsec-init has closed a connection
	groups groups

	mu       sync.Mutex
	scanning []byte // the token that the next connection begins with; nil: there is one, or none was asked for
	link     *link
	root     *os.File // what the claim gets
}

// link is one connection to dsec-init.
type link struct {
	conn   *net.UnixConn
	token  []byte
	copied chan struct{} // closed when nothing is written to the port any more
	ended  bool          // by us; under the bridge's mu
}

func newBridge(p *port, socket string) *bridge { return &bridge{port: p, socket: socket} }

// setRoot keeps the root for the claim.
func (b *bridge) setRoot(f *os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.root != nil {
		b.root.Close()
	}
	b.root = f
}

// sync ends the connection there is and makes the next one begin with the token.
func (b *bridge) sync(token []byte) error {
	b.mu.Lock()
	old := b.link
	b.link, b.scanning = nil, token
	if old != nil {
		old.ended = true
	}
	b.mu.Unlock()
	if old != nil {
		old.conn.Close()
		<-old.copied
	}
	_, err := b.port.Write(token)
	return err
}

// serve reads the port for ever.
func (b *bridge) serve() {
	chunk := make([]byte, 64<<10)
	var held []byte
	for {
		n, err := b.port.Read(chunk)
		if err != nil {
			return // the machine ends
		}
		held = append(held, chunk[:n]...)
		rest := b.consume(held)
		held = append(held[:0], rest...)
		if len(held) == 0 && cap(held) > 256<<10 {
			held = nil
		}
	}
}

// consume takes what is complete and returns the rest.
func (b *bridge) consume(p []byte) []byte {
	for {
		b.mu.Lock()
		scanning, l := b.scanning, b.link
		b.mu.Unlock()
		if scanning != nil {
			at := bytes.Index(p, scanning)
			if at < 0 {
				return p[max(0, len(p)-len(scanning)+1):]
			}
			p = p[at+len(scanning):]
			b.connect(scanning)
			continue
		}
		if l == nil {
			return nil
		}
		if len(p) < wire.HeaderSize {
			return p
		}
		h, err := wire.ParseHeader(p)
		if err != nil || h.FDs != 0 {
			l.conn.Close() // the copier says so
			b.drop(l)
			return nil
		}
		size := wire.HeaderSize + h.Size
		if len(p) < size {
			return p
		}
		if err := b.forward(l, h, p[:size]); err != nil {
			l.conn.Close()
			b.drop(l)
			return nil
		}
		p = p[size:]
	}
}

func (b *bridge) drop(l *link) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link == l {
		b.link = nil
	}
}

// connect opens a connection to dsec-init for the one that began with token.
func (b *bridge) connect(token []byte) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
	b.mu.Lock()
	if bytes.Equal(b.scanning, token) {
		b.scanning = nil
	} else if err == nil { // another one was asked for meanwhile
		c.Close()
		b.mu.Unlock()
		return
	}
	if err != nil {
		b.mu.Unlock()
		b.closed(token)
		return
	}
	l := &link{conn: c, token: token, copied: make(chan struct{})}
	b.link = l
	b.mu.Unlock()
	go func() {
		_, _ = io.CopyBuffer(struct{ io.Writer }{b.port}, struct{ io.Reader }{c}, make([]byte, 64<<10))
		c.Close()
		b.drop(l)
		close(l.copied)
		b.mu.Lock()
		ended := l.ended
		b.mu.Unlock()
		if !ended {
			b.closed(token)
		}
	}()
}

// forward writes a frame to dsec-init, with the descriptors that it needs.
func (b *bridge) forward(l *link, h wire.Header, frame []byte) error {
	payload := frame[wire.HeaderSize:]
	var files []*os.File
	switch h.Kind {
	case wire.KindClaim:
		b.mu.Lock()
		root := b.root
		b.root = nil
		b.mu.Unlock()
		if root != nil {
			files = []*os.File{root}
		}
	case wire.KindStart:
		var m wire.Start
		if m.Decode(payload) == nil && m.Session == "" {
			files = b.groups.make(m.ID)
		}
	case wire.KindOpenSession:
		var m wire.OpenSession
		if m.Decode(payload) == nil {
			files = b.groups.make(SessionGroup(m.ID))
		}
	}
	if len(files) == 0 {
		_, err := l.conn.Write(frame)
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	frame[5] = byte(len(fds)) // see wire.AppendHeader
	n, _, err := l.conn.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
	for _, f := range files {
		f.Close()
	}
	if err == nil && n < len(frame) {
		_, err = l.conn.Write(frame[n:])
	}
	return err
}
