package aether

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// WriteLimit bounds the writing of one frame.
const WriteLimit = 30 * time.Second

// ErrClosed is wrapped by the errors of calls on a connection that is gone.
var ErrClosed = errors.New("the channel to the sandbox is closed")

// Conn is the edge's end of the channel to one dsec-init. Methods are safe for concurrent use. Errors from
// dsec-init are *wire.Error.
type Conn struct {
	nc net.Conn
	br *bufio.Reader
	w  writer

	mu      sync.Mutex
	lastID  uint32
	calls   map[uint32]chan answer
	streams map[uint32]*stream
	serving bool
	err     error // set once: why the connection is gone
	done    chan struct{}
}

// answer is a Reply or Fail; payload is the receiver's.
type answer struct {
	payload []byte
	err     error
}

// Open says hello over nc with the given epoch and waits for the answer. dsec-init closes connections of
// smaller epochs. No goroutine runs before Serve. After an error nc is closed.
func Open(ctx context.Context, nc net.Conn, epoch uint64) (*Conn, error) {
	c := &Conn{
		nc: nc, br: bufio.NewReaderSize(nc, 4096),
		calls: make(map[uint32]chan answer), streams: make(map[uint32]*stream),
		done: make(chan struct{}),
	}
	c.w.init(c)
	hello := wire.Hello{Version: wire.Version, Epoch: epoch}
	if _, err := c.call(ctx, wire.KindHello, hello.Append, nil); err != nil {
		c.fail(err)
		return nil, fmt.Errorf("greet dsec-init: %w", err)
	}
	return c, nil
}

// Claim gives a warm shell its environment; root is the descriptor of a detached mount, or nil where the machine has it
// already. It may be called before Serve, and only once in a shell's life.
func (c *Conn) Claim(ctx context.Context, claim *wire.Claim, root *os.File) error {
	var files []*os.File
	if root != nil {
		files = []*os.File{root}
	}
	_, err := c.call(ctx, wire.KindClaim, claim.Append, files)
	if err != nil {
		return fmt.Errorf("claim shell: %w", err)
	}
	return nil
}

// Serve starts the reader; h gets all that arrives from now on. Call once. Output of a command flows only
// after Start on this connection or Resume.
func (c *Conn) Serve(h Handler) {
	c.mu.Lock()
	c.serving = true
	c.mu.Unlock()
	go c.serve(h)
}

// Close closes the connection; dsec-init and its commands go on. Handler.Closed follows.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	return nil
}

// Done is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.done }

// fail ends the connection; the first reason stays. Everything that waits on it gets an error.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.err = err
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	close(c.done)
	c.nc.Close()
	for _, s := range streams {
		s.fail(err)
	}
}

func (c *Conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// call sends a request and waits for its answer.
func (c *Conn) call(ctx context.Context, kind wire.Kind, payload func([]byte) []byte, fds []*os.File) ([]byte, error) {
	return c.callStream(ctx, kind, payload, fds, nil)
}

// callStream is call for a request that opens a stream, which then has the request's id. The stream is
// forgotten when the answer is an error.
func (c *Conn) callStream(ctx context.Context, kind wire.Kind, payload func([]byte) []byte, fds []*os.File, s *stream) ([]byte, error) {
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.lastID++
	for c.lastID == 0 || c.calls[c.lastID] != nil || c.streams[c.lastID] != nil {
		c.lastID++
	}
	id := c.lastID
	c.calls[id] = ch
	if s != nil {
		s.id = id
		c.streams[id] = s
	}
	serving := c.serving
	c.mu.Unlock()
	sent := false
	defer func() {
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
	}()
	giveUp := func(err error) ([]byte, error) {
		if s != nil {
			c.forget(s)
			if sent {
				c.w.queue(wire.KindReset, id, nil)
			}
		}
		return nil, err
	}
	if err := c.w.request(ctx, kind, id, payload, fds); err != nil {
		return giveUp(err)
	}
	sent = true
	if !serving {
		if err := c.readAnswer(ctx, id); err != nil {
			c.fail(err)
			return giveUp(err)
		}
	}
	select {
	case a := <-ch:
		if a.err != nil {
			sent = false // refused: dsec-init knows no such stream
			return giveUp(a.err)
		}
		return a.payload, nil
	case <-c.done:
		return giveUp(c.reason())
	case <-ctx.Done():
		return giveUp(ctx.Err())
	}
}

// readAnswer reads until the answer to one request came, while there is no reader yet. The caller's deadline
// bounds it; so does cancellation.
func (c *Conn) readAnswer(ctx context.Context, id uint32) error {
	stop := context.AfterFunc(ctx, func() { c.nc.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			return
		}
		c.nc.SetReadDeadline(time.Time{})
	}()
	for range 64 {
		h, p, err := c.readFrame(nil)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if h.Kind != wire.KindReply && h.Kind != wire.KindFail {
			continue // unasked, and nobody listens yet
		}
		c.answer(h, p)
		if h.ID == id {
			return nil
		}
	}
	return errProtocol
}

var errProtocol = errors.New("dsec-init broke the protocol")

// readFrame reads one frame; the payload is in buf when it fits.
func (c *Conn) readFrame(buf []byte) (wire.Header, []byte, error) {
	var head [wire.HeaderSize]byte
	if _, err := io.ReadFull(c.br, head[:]); err != nil {
		return wire.Header{}, nil, err
	}
	h, err := wire.ParseHeader(head[:])
	if err != nil || h.FDs != 0 {
		return h, nil, errProtocol
	}
	if cap(buf) < h.Size {
		buf = make([]byte, h.Size)
	}
	buf = buf[:h.Size]
	_, err = io.ReadFull(c.br, buf)
	return h, buf, err
}

// answer hands a Reply or Fail to who waits for it.
func (c *Conn) answer(h wire.Header, p []byte) {
	c.mu.Lock()
	ch := c.calls[h.ID]
	delete(c.calls, h.ID)
	c.mu.Unlock()
	if ch == nil {
		return
	}
	if h.Kind == wire.KindFail {
		ch <- answer{err: wire.DecodeError(p)}
		return
	}
	ch <- answer{payload: append([]byte(nil), p...)}
}
