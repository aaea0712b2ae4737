package qemu

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// WriteLimit bounds the writing of one request.
const WriteLimit = 10 * time.Second

// Control is a connection to a machine's first program.
type Control struct {
	nc    net.Conn
	heard func(*control.Reply) // of each event
	turn  sync.Mutex           // of writers

	mu    sync.Mutex
	last  uint64
	calls map[uint64]chan *control.Reply
	err   error
	done  chan struct{}
}

// NewControl takes a connection to the port control.PortName; heard is called with each event, by the reader. Close must
// follow.
func NewControl(nc net.Conn, heard func(*control.Reply)) *Control {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	c := &Control{nc: nc, heard: heard, last: binary.LittleEndian.Uint64(seed[:]) >> 12, calls: map[uint64]chan *control.Reply{}, done: make(chan struct{})}
	go c.read()
	return c
}

// Close ends the connection.
func (c *Control) Close() { c.fail(errors.New("the connection to the machine is closed")) }

func (c *Control) fail(err error) {
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
func (c *Control) read() {
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
		if reply.Event != "" {
			if c.heard != nil {
				c.heard(reply)
			}
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

// Send writes a request without waiting; its answer comes on the channel.
func (c *Control) Send(q *control.Request) (<-chan *control.Reply, func(), error) {
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
	_ = c.nc.SetWriteDeadline(time.Now().Add(WriteLimit))
	_, err = c.nc.Write([]byte("\n" + string(b) + "\n"))
	c.turn.Unlock()
	if err != nil {
		c.fail(err)
	}
	return ch, forget, nil
}

// Call sends a request and waits for its answer. Errors: sandbox.ErrInvalid and ErrNotFound as the machine says,
// sandbox.ErrUnavailable when it is gone, the context's.
func (c *Control) Call(ctx context.Context, q *control.Request) (*control.Reply, error) {
	ch, forget, err := c.Send(q)
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
		case control.KindPrepared:
			return nil, fmt.Errorf("%w: %w", msg, sandbox.ErrAlreadyExists)
		}
		return nil, msg
	case <-c.done:
		return nil, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%s in the machine: %w", q.Op, ctx.Err())
	}
}
