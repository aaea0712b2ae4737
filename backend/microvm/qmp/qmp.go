// Package qmp speaks QEMU's monitor protocol: one JSON object a line.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// maxLine bounds what QEMU says at once, bytes.
const maxLine = 1 << 20

// writeLimit bounds the writing of a command.
const writeLimit = 10 * time.Second

// ErrClosed is wrapped by the errors of commands on a connection that is gone.
var ErrClosed = errors.New("the monitor's connection is closed")

// Event is something that happened in the machine.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Error is QEMU's refusal of a command.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return e.Desc }

// Conn is a connection to a monitor. Methods are safe for concurrent use.
type Conn struct {
	nc   net.Conn
	turn sync.Mutex // of writers

	mu    sync.Mutex
	last  int
	calls map[int]chan answer
	err   error
	done  chan struct{}
}

type answer struct {
	data json.RawMessage
	err  error
}

type message struct {
	Event
	ID     *int            `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`
}

// Open begins a session on nc; events are told to heard, one after the other, which must not wait for a command. After an
// error nc is closed.
func Open(ctx context.Context, nc net.Conn, heard func(Event)) (*Conn, error) {
	c := &Conn{nc: nc, calls: map[int]chan answer{}, done: make(chan struct{})}
	go c.read(heard)
	if err := c.Do(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.Close()
		return nil, fmt.Errorf("open the monitor: %w", err)
	}
	return c, nil
}

// Close ends the session; the machine goes on.
func (c *Conn) Close() { c.fail(ErrClosed) }

// Done is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.done }

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.err = err
	for _, ch := range c.calls {
		ch <- answer{err: err}
	}
	c.calls = nil
	c.nc.Close()
	close(c.done)
}

func (c *Conn) read(heard func(Event)) {
	s := bufio.NewScanner(c.nc)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		var m message
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			c.fail(fmt.Errorf("read from the monitor: %w", err))
			return
		}
		switch {
		case m.Name != "":
			if heard != nil {
				heard(m.Event)
			}
		case m.ID != nil:
			a := answer{data: m.Return}
			if m.Error != nil {
				a.err = m.Error
			}
			c.mu.Lock()
			ch := c.calls[*m.ID]
			delete(c.calls, *m.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- a
			}
		}
	}
	err := s.Err()
	if err == nil {
		err = errors.New("QEMU closed it")
	}
	c.fail(err)
}

// Do runs a command and reads its result into out, unless that is nil. Errors: *Error, ErrClosed, the context's.
func (c *Conn) Do(ctx context.Context, command string, args, out any) error {
	return c.do(ctx, command, args, out, c.nc.Write)
}

// Pass is Do with a file that the command is about (getfd), which stays the caller's. The connection must be a Unix socket.
func (c *Conn) Pass(ctx context.Context, command string, args any, file syscall.Conn) error {
	u, ok := c.nc.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%s: the monitor is no Unix socket", command)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return c.do(ctx, command, args, nil, func(b []byte) (n int, err error) {
		cerr := raw.Control(func(fd uintptr) { n, _, err = u.WriteMsgUnix(b, syscall.UnixRights(int(fd)), nil) })
		return n, errors.Join(cerr, err)
	})
}

func (c *Conn) do(ctx context.Context, command string, args, out any, write func([]byte) (int, error)) error {
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return c.err
	}
	c.last++
	id := c.last
	c.calls[id] = ch
	c.mu.Unlock()
	msg := map[string]any{"execute": command, "id": id}
	if args != nil {
		msg["arguments"] = args
	}
	b, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	c.turn.Lock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err = write(append(b, '\n'))
	c.turn.Unlock()
	if err != nil {
		c.fail(err)
	}
	select {
	case a := <-ch:
		if a.err != nil {
			return fmt.Errorf("%s: %w", command, a.err)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(a.data, out)
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
}
