// Package tcptunnel speaks the client's end of the upgrade that leads to a TCP port of a sandbox:
//
//	GET /v1/sandboxes/{id}/tcp/{port}   Connection: Upgrade, Upgrade: dsec-tcp   -> 101, then raw bytes
//
// and to what else of a sandbox is reached in the same way, its screen for instance.
package tcptunnel

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Protocol is the upgrade token.
const Protocol = "dsec-tcp"

// Request says where to.
type Request struct {
	Host      string // Host header
	SandboxID string
	Port      uint16
	Path      string      // below the sandbox, in place of a port: "screen/vnc"
	Header    http.Header // for example Authorization; may be nil
}

// Refused is an answer other than 101.
type Refused struct {
	Status int
	Body   []byte // at most 64 KiB, as sent: JSON {"code","message"}
}

func (r *Refused) Error() string {
	return fmt.Sprintf("connect to port: status %d: %s", r.Status, bytes.TrimSpace(r.Body))
}

// Dial turns c, a fresh connection to an API server or edge, into a connection to the port. It owns c from now
// on: c is closed when it fails. Errors: *Refused, ctx's, the connection's.
func Dial(ctx context.Context, c net.Conn, r Request) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	out, err := upgrade(c, r)
	if !stop() && err == nil { // ctx ended at the last moment
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("connect to port: %w", ctx.Err())
		}
		return nil, err
	}
	return out, nil
}

func upgrade(c net.Conn, r Request) (net.Conn, error) {
	path := r.Path
	if path == "" {
		path = fmt.Sprintf("tcp/%d", r.Port)
	}
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/v1/sandboxes/%s/%s", r.Host, r.SandboxID, path), nil)
	if err != nil {
		return nil, fmt.Errorf("connect to port: %w", err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	if err := req.Write(c); err != nil {
		return nil, fmt.Errorf("connect to port: %w", err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, fmt.Errorf("connect to port: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, &Refused{Status: resp.StatusCode, Body: body}
	}
	return &conn{Conn: c, early: br}, nil
}

// conn gives first what came right behind the 101.
type conn struct {
	net.Conn
	early *bufio.Reader
}

func (c *conn) Read(b []byte) (int, error) {
	if c.early != nil {
		if c.early.Buffered() > 0 {
			return c.early.Read(b)
		}
		c.early = nil
	}
	return c.Conn.Read(b)
}

// CloseWrite ends the sending direction; the other one stays open.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Conn.Close()
}
