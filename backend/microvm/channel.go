package microvm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// writeLimit bounds the writing of one request.
const writeLimit = 10 * time.Second

// maxStale bounds what is read before a connection's beginning, bytes: what the machine had sent to a predecessor.
const maxStale = 8 << 20

// dial connects to a socket in a machine's directory, by way of a descriptor, because socket addresses end at 108 bytes.
func dial(ctx context.Context, dir, name string) (net.Conn, error) {
	dh, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer dh.Close()
	var dl net.Dialer
	return dl.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dh.Fd(), name))
}

// controlConn is a connection to a machine's first program.
type controlConn struct {
	nc     net.Conn
	closed func(token []byte) // dsec-init has closed the connection that began with it
	turn   sync.Mutex         // of writers

	mu    sync.Mutex
	last  uint64
	calls map[uint64]chan *control.Reply
	err   error
	done  chan struct{}
}

func newControlConn(nc net.Conn, closed func([]byte)) *controlConn {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	c := &controlConn{nc: nc, closed: closed, last: binary.LittleEndian.Uint64(seed[:]) >> 12, calls: map[uint64]chan *control.Reply{}, done: make(chan struct{})}
	go c.read()
	return c
}

func (c *controlConn) close() { c.fail(errors.New("the connection to the machine is closed")) }

func (c *controlConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	c.nc.Close()
	close(c.done)
}

// read takes lines until the end. What does not parse is not for us, or a lie: passed over.
func (c *controlConn) read() {
	r := bufio.NewReaderSize(c.nc, control.MaxLine)
	for {
		line, err := r.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil {
			c.fail(err)
			return
		}
		reply := &control.Reply{}
		if len(line) <= 1 || json.Unmarshal(line, reply) != nil {
			continue
		}
		if reply.Event == control.EventClosed && c.closed != nil {
			c.closed(reply.Token)
			continue
		}
		c.mu.Lock()
		ch := c.calls[reply.N]
		delete(c.calls, reply.N)
		c.mu.Unlock()
		if ch != nil {
			ch <- reply
		}
	}
}

// send writes a request; its answer comes on the channel.
func (c *controlConn) send(q *control.Request) (<-chan *control.Reply, func(), error) {
	ch := make(chan *control.Reply, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, nil, c.err
	}
	c.last++
	n := c.last
	q.N = n
	c.calls[n] = ch
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		delete(c.calls, n)
		c.mu.Unlock()
	}
	b, err := json.Marshal(q)
	if err != nil {
		forget()
		return nil, nil, err
	}
	c.turn.Lock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err = c.nc.Write([]byte("\n" + string(b) + "\n"))
	c.turn.Unlock()
	if err != nil {
		c.fail(err)
	}
	return ch, forget, nil
}

// call sends a request and waits for its answer. Errors: sandbox.ErrInvalid and ErrNotFound as the machine says,
// sandbox.ErrUnavailable when it is gone, the context's.
func (c *controlConn) call(ctx context.Context, q *control.Request) (*control.Reply, error) {
	ch, forget, err := c.send(q)
	if err != nil {
		return nil, err
	}
	defer forget()
	select {
	case r := <-ch:
		if r.Error == "" {
			return r, nil
		}
		msg := fmt.Errorf("%s in the machine: %.512s", q.Op, r.Error)
		switch r.Kind {
		case control.KindInvalid:
			return nil, fmt.Errorf("%w: %w", msg, sandbox.ErrInvalid)
		case control.KindNotFound:
			return nil, fmt.Errorf("%w: %w", msg, sandbox.ErrNotFound)
		}
		return nil, msg
	case <-c.done:
		return nil, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%s in the machine: %w", q.Op, ctx.Err())
	}
}

// channelConn is a connection to dsec-init.
type channelConn struct {
	net.Conn
	token []byte
	rest  []byte // read with the token
}

func (c *channelConn) Read(b []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(b, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// openChannel begins a connection to dsec-init, as package control describes.
func openChannel(ctx context.Context, dir string, ctl *controlConn) (_ *channelConn, err error) {
	nc, err := dial(ctx, dir, channelName)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			nc.Close()
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
	}()
	c := &channelConn{Conn: nc, token: make([]byte, control.TokenSize)}
	_, _ = rand.Read(c.token) // never fails
	// The answer is the token itself.
	_, forget, err := ctl.send(&control.Request{Op: control.OpSync, Token: c.token})
	if err != nil {
		return nil, err
	}
	defer forget()
	var held []byte
	buf := make([]byte, 64<<10)
	for total := 0; ; {
		n, err := nc.Read(buf)
		if err != nil {
			return nil, fmt.Errorf("begin a connection: %w", err)
		}
		held = append(held, buf[:n]...)
		if at := bytes.Index(held, c.token); at >= 0 {
			c.rest = bytes.Clone(held[at+len(c.token):])
			break
		}
		if total += n; total > maxStale {
			return nil, errors.New("begin a connection: the machine sends something else")
		}
		held = append(held[:0], held[max(0, len(held)-len(c.token)+1):]...)
	}
	_, err = nc.Write(c.token)
	return c, err
}

// awaitSocket waits until a process listens in dir. There is no event for that.
func awaitSocket(ctx context.Context, dir, name string, gone <-chan struct{}) (net.Conn, error) {
	for {
		nc, err := dial(ctx, dir, name)
		if err == nil {
			return nc, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-gone:
			return nil, fmt.Errorf("%w: QEMU has ended", sandbox.ErrUnavailable)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
