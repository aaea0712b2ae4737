package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// maxDirect is the longest request body that goes out in one piece; longer ones may be answered before they end.
	maxDirect   = 64 << 10
	maxIdle     = 256
	idleTimeout = 60 * time.Second
)

// direct is a RoundTripper for the many short requests to an edge. The request's own goroutine writes it and reads the
// answer; http.Transport has two more for each connection, and to wake them costs as much as all the rest. What it
// does not do (long bodies, upgrades) goes to next.
type direct struct {
	dial func(ctx context.Context) (net.Conn, error)
	next http.RoundTripper

	mu   sync.Mutex
	idle []*directConn // most recently used last
}

type directConn struct {
	net.Conn
	br    *bufio.Reader
	since time.Time // idle
}

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.ContentLength < 0 || req.ContentLength > maxDirect || req.Header.Get("Upgrade") != "" || req.Body != nil && req.ContentLength == 0 && req.Body != http.NoBody {
		return d.next.RoundTrip(req)
	}
	b, err := encode(req)
	if err != nil {
		return nil, err
	}
	ctx := req.Context()
	for {
		c, reused, err := d.take(ctx)
		if err != nil {
			return nil, err
		}
		// Whoever gives up closes the connection, and so ends every wait on it.
		stop := context.AfterFunc(ctx, func() {
			c.Close()
		})
		if _, err := c.Write(b); err != nil {
			stop()
			c.Close()
			if reused && ctx.Err() == nil && errors.Is(err, syscall.EPIPE) {
				continue // closed while it was idle: nothing of the request was read
			}
			return nil, cause(ctx, err)
		}
		resp, err := http.ReadResponse(c.br, req)
		if err != nil {
			stop()
			c.Close()
			return nil, cause(ctx, err)
		}
		resp.Body = &directBody{ReadCloser: resp.Body, d: d, c: c, stop: stop, ctx: ctx, keep: !resp.Close}
		return resp, nil
	}
}

func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// encode is the request as it goes over the connection, head and body in one piece.
func encode(req *http.Request) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(512 + int(req.ContentLength))
	err := req.Write(&b) // closes the body
	return b.Bytes(), err
}

// take returns an idle connection that the edge has not closed, or a new one.
func (d *direct) take(ctx context.Context) (c *directConn, reused bool, err error) {
	for {
		d.mu.Lock()
		n := len(d.idle)
		if n == 0 {
			d.mu.Unlock()
			break
		}
		c := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.mu.Unlock()
		if time.Since(c.since) < idleTimeout && !closed(c.Conn) {
			return c, true, nil
		}
		c.Close()
	}
	nc, err := d.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	return &directConn{Conn: nc, br: bufio.NewReaderSize(nc, 4<<10)}, false, nil
}

// closed tells whether the other side has closed an idle connection, or sent what nobody asked for.
func closed(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	quiet := false
	err = rc.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN
	})
	return err != nil || !quiet
}

// put keeps a connection for the next request, and drops those that nobody has used for long.
func (d *direct) put(c *directConn) {
	c.since = time.Now()
	d.mu.Lock()
	old := 0
	for old < len(d.idle) && (time.Since(d.idle[old].since) >= idleTimeout || len(d.idle)-old >= maxIdle) {
		old++
	}
	drop := append([]*directConn(nil), d.idle[:old]...)
	d.idle = append(d.idle[old:], c)
	d.mu.Unlock()
	for _, c := range drop {
		c.Close()
	}
}

// CloseIdleConnections closes what no request uses.
func (d *direct) CloseIdleConnections() {
	d.mu.Lock()
	idle := d.idle
	d.idle = nil
	d.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
	if n, ok := d.next.(interface{ CloseIdleConnections() }); ok {
		n.CloseIdleConnections()
	}
}

// directBody is an answer's body. Read to its end it gives the connection back, else it closes it.
type directBody struct {
	io.ReadCloser
	d    *direct
	c    *directConn
	stop func() bool
	ctx  context.Context
	keep bool
	done bool
}

func (b *directBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.finish(true)
	case err != nil:
		err = cause(b.ctx, err)
		b.finish(false)
	}
	return n, err
}

func (b *directBody) Close() error {
	b.finish(false)
	return nil
}

func (b *directBody) finish(whole bool) {
	if b.done {
		return
	}
	b.done = true
	if b.stop() && whole && b.keep && b.c.br.Buffered() == 0 {
		b.d.put(b.c)
		return
	}
	b.c.Close()
}
