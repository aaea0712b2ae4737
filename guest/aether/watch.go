package aether

import (
	"bufio"
	"context"

	"github.com/opendsec/dsec/guest/wire"
)

// Watch is a directory that is being watched. Next from one goroutine, Close from any.
type Watch struct {
	s *stream
	r *bufio.Reader
}

// Watch watches a directory, and with recursive all that are or come to be beneath it, until Close or the end of ctx.
func (c *Conn) Watch(ctx context.Context, path, user string, recursive bool) (*Watch, error) {
	m := wire.Path{Path: path, User: user, Follow: recursive}
	s, _, err := c.open(ctx, wire.KindWatch, m.Append, true)
	if err != nil {
		return nil, err
	}
	return &Watch{s, bufio.NewReaderSize(s, 4096)}, nil
}

// Next waits for the next event. Error: CodeNotFound when the directory was removed or moved away.
func (w *Watch) Next() (wire.WatchEvent, error) { return wire.ReadWatchEvent(w.r) }

// Close ends the watching; a Next that waits returns.
func (w *Watch) Close() error {
	w.s.reset(ErrClosed)
	return nil
}
