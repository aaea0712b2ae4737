package qemu

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/opendsec/dsec/guest/machine/control"
)

// maxStale bounds what is read before a connection's beginning, bytes: what the machine had sent to a predecessor.
const maxStale = 8 << 20

// Channel is a connection to dsec-init.
type Channel struct {
	net.Conn
	token []byte
	rest  []byte // read with the token
}

// Read implements net.Conn.
func (c *Channel) Read(b []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(b, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// OpenChannel begins a connection to dsec-init, as package control describes, over the socket name in dir, which is that of the
// port control.Channel.
func OpenChannel(ctx context.Context, dir, name string, ctl *Control) (_ *Channel, err error) {
	nc, err := Dial(ctx, dir, name)
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
	c := &Channel{Conn: nc, token: make([]byte, control.TokenSize)}
	_, _ = rand.Read(c.token) // never fails
	// The answer is the token itself.
	_, forget, err := ctl.Send(&control.Request{Op: control.OpSync, Token: c.token})
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

// Began tells whether the connection began with token.
func (c *Channel) Began(token []byte) bool { return bytes.Equal(c.token, token) }
