package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// runHTTP passes requests on one by one, each after a check of its Host.
func (c *conn) runHTTP(ctx context.Context) error {
	q, err := c.nextRequest(true)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		c.denyHTTP(err)
		return err
	}
	if err := c.dial(ctx); err != nil {
		return err
	}
	if q.upgrade {
		return c.runUpgrade(q)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.back()
		c.finish()
	}()
	err = c.requests(q, answered)
	var r refusal
	switch {
	case c.over.Load(): // whatever the client said last went nowhere
		c.drain()
		err = nil
	case errors.As(err, &r):
		// An answer to an earlier request may be under way: there is no place for a reason.
		c.client.reset()
		c.server.reset()
	default:
		c.endForth(err)
		err = nil
	}
	<-answered
	return err
}

// nextRequest reads a request and checks it. io.EOF says that the client has ended.
func (c *conn) nextRequest(first bool) (*request, error) {
	q, err := readRequest(c.client.br)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, refuse("HTTP: %v", plain(err))
	}
	if q.upgrade && !first {
		return nil, refuse("HTTP: an upgrade after other requests on the same connection")
	}
	if q.port != 0 && q.port != c.flow.Destination.Port() {
		return nil, refuse("HTTP: Host names port %d, the connection goes to %d", q.port, c.flow.Destination.Port())
	}
	return q, c.admit(q.host)
}

// requests sends the first request and all that follow. nil says that the client has ended. answered is closed when the
// server has.
func (c *conn) requests(q *request, answered <-chan struct{}) error {
	for first := true; ; first = false {
		if q.expect && first {
			// The server has nothing to say yet, so that this cannot fall into the middle of an answer. Later ones
			// send their body after a moment.
			if _, err := io.WriteString(c.client.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return err
			}
		}
		if err := c.send(q.head); err != nil {
			return err
		}
		if err := c.body(q.length); err != nil {
			return err
		}
		if err := c.awaitRequest(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if q.last {
			// What follows is no request to the server. Its answer is waited for; passing an end on now would make
			// some servers give up.
			<-answered
			return errOver
		}
		var err error
		if q, err = c.nextRequest(false); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// awaitRequest waits for the next request's first byte, and gives the client HelloTimeout for the rest of the head. One
// empty line before it, which some clients send after a body, is not passed on.
func (c *conn) awaitRequest() error {
	if err := c.readUntil(c.client, c.s.cfg.IdleTimeout); err != nil {
		return err
	}
	first, err := c.client.br.Peek(1)
	if err != nil {
		return err
	}
	c.touch()
	if err := c.readUntil(c.client, c.s.cfg.HelloTimeout); err != nil {
		return err
	}
	if first[0] == '\r' {
		if line, err := readLine(c.client.br, 2); err != nil || len(line) != 0 {
			return refuse("HTTP: bytes between two requests")
		}
		if _, err := c.client.br.Peek(1); err != nil {
			return err
		}
	}
	return nil
}

// body passes a request's body on.
func (c *conn) body(length int64) error {
	if length >= 0 {
		return c.pump(c.server, c.client, length, &c.sent)
	}
	for {
		size, err := c.chunkLine()
		if err != nil {
			return err
		}
		if size == 0 {
			return c.trailers()
		}
		if err := c.pump(c.server, c.client, size, &c.sent); err != nil {
			return err
		}
		end, err := c.line(2)
		if err != nil || len(end) != 0 {
			return refuse("HTTP: a chunk that does not end where it says")
		}
		if err := c.send([]byte("\r\n")); err != nil {
			return err
		}
	}
}

// line reads a line of a body within the idle time.
func (c *conn) line(limit int) ([]byte, error) {
	if err := c.readUntil(c.client, c.s.cfg.IdleTimeout); err != nil {
		return nil, err
	}
	return readLine(c.client.br, limit)
}

// chunkLine passes on the line before a chunk, and returns the chunk's size.
func (c *conn) chunkLine() (int64, error) {
	line, err := c.line(maxChunk)
	if err != nil {
		return 0, refuse("HTTP: a chunk: %v", plain(err))
	}
	hex, extension, _ := strings.Cut(string(line), ";")
	for i := range len(extension) {
		if b := extension[i]; b < ' ' && b != '\t' || b >= 0x7f {
			return 0, refuse("HTTP: a malformed chunk")
		}
	}
	size, err := strconv.ParseUint(hex, 16, 60)
	if err != nil || len(hex) > 16 || strings.ContainsAny(hex, "+-_xX") {
		return 0, refuse("HTTP: a malformed chunk")
	}
	return int64(size), c.send(append(line, "\r\n"...))
}

// trailers passes on what follows the last chunk. It must not say again where the request goes.
func (c *conn) trailers() error {
	total := 0
	for {
		line, err := c.line(maxHead)
		if err != nil {
			return refuse("HTTP: trailers: %v", plain(err))
		}
		if total += len(line); total > maxHead {
			return refuse("HTTP: trailers that are too long")
		}
		if len(line) > 0 {
			name, _, err := header(line)
			if err != nil {
				return refuse("HTTP: trailers: %v", err)
			}
			switch name {
			case "host", "content-length", "transfer-encoding", "connection", "upgrade", "expect":
				return refuse("HTTP: the trailer %s", name)
			}
		}
		if err := c.send(append(line, "\r\n"...)); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
	}
}

// runUpgrade passes on a request that asks for another protocol. Only once the server has agreed does anything more of
// the client go through; if it does not, nothing ever does.
func (c *conn) runUpgrade(q *request) error {
	if err := c.send(q.head); err != nil {
		c.endForth(err)
		return nil
	}
	_ = c.server.conn.SetReadDeadline(time.Now().Add(c.s.cfg.IdleTimeout))
	status, err := c.server.br.Peek(len("HTTP/1.1 101 "))
	if err != nil && !errors.Is(err, io.EOF) {
		c.endForth(err)
		return nil
	}
	if strings.HasPrefix(string(status), "HTTP/1.1 101 ") {
		return c.splice()
	}
	c.endForth(nil)
	c.back()
	return nil
}

// denyHTTP tells the client why.
func (c *conn) denyHTTP(err error) {
	text := fmt.Sprintf("The sandbox's network policy refuses this request: %s\n", err)
	c.sayAndClose(fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text))
}
