package proxy

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// piece is how much is moved before progress is noted. Between TCP sockets the kernel moves it.
const piece = 1 << 20

// pump moves n bytes from one side to the other; all until the end if n is negative. It returns io.ErrUnexpectedEOF if
// fewer than n came.
func (c *conn) pump(to, from *side, n int64, count *atomic.Uint64) error {
	if ahead := int64(from.br.Buffered()); ahead > 0 && n != 0 {
		if n > 0 {
			ahead = min(ahead, n)
		}
		b, err := from.br.Peek(int(ahead))
		if err != nil {
			return err
		}
		if _, err := to.conn.Write(b); err != nil {
			return err
		}
		_, _ = from.br.Discard(int(ahead))
		c.moved(count, ahead)
		if n > 0 {
			n -= ahead
		}
	}
	for n != 0 {
		limit := int64(piece)
		if n > 0 {
			limit = min(limit, n)
		}
		if err := c.readUntil(from, tick(c.s.cfg.IdleTimeout)); err != nil {
			return err
		}
		m, err := io.Copy(to.conn, &io.LimitedReader{R: from.conn, N: limit})
		c.moved(count, m)
		if n > 0 {
			n -= m
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.over.Load(): // look whether there was progress; watchIdle ends it if not
		case err != nil:
			return err
		case m < limit && n > 0:
			return io.ErrUnexpectedEOF
		case m < limit:
			return nil
		}
	}
	return nil
}

// errOver says that the server has ended, so that nothing more of the client is wanted.
var errOver = errors.New("the server has ended")

// readUntil bounds the wait for what a side says. For the client it is errOver once over is set; whoever sets that sets
// the deadline afterwards, so that one of the two is seen.
func (c *conn) readUntil(from *side, d time.Duration) error {
	if err := from.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if from == c.client && c.over.Load() {
		return errOver
	}
	return nil
}

// finish makes the wait for the client end.
func (c *conn) finish() {
	c.over.Store(true)
	_ = c.client.conn.SetReadDeadline(time.Unix(1, 0))
}

func (c *conn) moved(count *atomic.Uint64, n int64) {
	if n > 0 {
		count.Add(uint64(n))
		c.touch()
	}
}

// send writes what was read and checked already to the server.
func (c *conn) send(b []byte) error {
	if _, err := c.server.conn.Write(b); err != nil {
		return err
	}
	c.moved(&c.sent, int64(len(b)))
	return nil
}

// splice moves bytes both ways until both have ended.
func (c *conn) splice() error {
	var wg sync.WaitGroup
	wg.Go(func() { c.back() })
	err := c.pump(c.server, c.client, -1, &c.sent)
	c.endForth(err)
	wg.Wait()
	return nil
}

// back moves what the server says to the client, and passes its end on.
func (c *conn) back() {
	if err := c.pump(c.client, c.server, -1, &c.received); err != nil {
		// A broken direction leaves nothing to say in the other one.
		c.client.reset()
		c.server.reset()
		return
	}
	_ = c.client.closeWrite()
}

// endForth passes the client's end on, or breaks both.
func (c *conn) endForth(err error) {
	if err == nil {
		err = c.server.closeWrite()
	}
	if err != nil {
		c.client.reset()
		c.server.reset()
	}
}
