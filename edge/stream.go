package edge

import (
	"context"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
)

// readChunk is how much output a stream reads from the record at a time: what a slow client costs.
const readChunk = 64 << 10

// streamCommand sends a command's events: started, its output from an offset on, and, with follow, what comes
// until it has ended. A slow client reads from the record; it holds nobody up.
func (b *box) streamCommand(ctx context.Context, order, from int64, follow bool, send func(*dsecv1.CommandEvent) error) error {
	b.mu.Lock()
	c := b.commands[order]
	b.mu.Unlock()
	var more <-chan struct{}
	var done chan struct{}
	if c != nil {
		ch, stop := c.watch()
		defer stop()
		more, done = ch, c.done
		if err := c.awaitStart(ctx); err != nil {
			return err
		}
	}
	cmd, err := b.showCommand(c, order)
	if err != nil {
		return err
	}
	start := cmd
	if cmd.Result != nil { // `started` shows no result
		start = &dsecv1.Command{Id: cmd.Id, OperationId: cmd.OperationId, Order: cmd.Order, Spec: cmd.Spec, StartedAt: cmd.StartedAt, Pid: cmd.Pid}
	}
	if err := send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Started{Started: start}}); err != nil {
		return err
	}
	s := &outputStream{r: b.log.Reader(order, from), next: max(0, from), send: send}
	keepAlive := time.NewTimer(b.e.cfg.KeepAlive)
	defer keepAlive.Stop()
	for {
		ended := isClosed(done) // before reading: all its output is then recorded
		sent, err := s.drain()
		if err != nil {
			return err
		}
		if ended {
			break
		}
		if !follow {
			return nil
		}
		if sent {
			keepAlive.Reset(b.e.cfg.KeepAlive)
		}
		select {
		case <-more:
		case <-done:
		case <-keepAlive.C:
			if err := send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_KeepAlive{KeepAlive: &dsecv1.KeepAlive{}}}); err != nil {
				return err
			}
			keepAlive.Reset(b.e.cfg.KeepAlive)
		case <-b.e.closing:
			return errClosing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if cmd, err = b.showCommand(c, order); err != nil {
		return err
	}
	return send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Ended{Ended: cmd}})
}

// isClosed tells whether ch is closed; nil stands for a command that ended long ago.
func isClosed(ch chan struct{}) bool {
	if ch == nil {
		return true
	}
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// awaitStart waits until the command runs, or has ended without.
func (c *command) awaitStart(ctx context.Context) error {
	select {
	case <-c.started:
		return nil
	case <-c.b.e.closing:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitEnd waits until the command has ended.
func (c *command) awaitEnd(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-c.b.e.closing:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
}

// showCommand is a command as it is now; c is nil for one that ended before.
func (b *box) showCommand(c *command, order int64) (*dsecv1.Command, error) {
	if c != nil {
		return c.show(), nil
	}
	b.mu.Lock()
	c = b.commands[order]
	b.mu.Unlock()
	if c != nil {
		return c.show(), nil
	}
	return b.command(order)
}

// outputStream sends what is recorded of a command's output.
type outputStream struct {
	r    *record.Reader
	next int64 // offset after what was sent
	send func(*dsecv1.CommandEvent) error
}

// drain sends all that is recorded by now.
func (s *outputStream) drain() (sent bool, err error) {
	for {
		pieces, err := s.r.Read(readChunk)
		if err != nil || len(pieces) == 0 {
			return sent, err
		}
		for _, p := range pieces {
			out := &dsecv1.Output{Offset: p.Offset, Stream: dsecv1.Stream(p.Stream), Data: p.Data, CutBytes: p.Offset - s.next}
			if err := s.send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Output{Output: out}}); err != nil {
				return sent, err
			}
			s.next = p.Offset + int64(len(p.Data))
		}
		sent = true
	}
}

// collect returns what is recorded of an ended command, by stream; a terminal's output counts as stdout.
func (b *box) collect(order int64) (stdout, stderr []byte, err error) {
	r := b.log.Reader(order, 0)
	for {
		pieces, err := r.Read(1 << 20)
		if err != nil || len(pieces) == 0 {
			return stdout, stderr, err
		}
		for _, p := range pieces {
			if p.Stream == record.Stream(dsecv1.Stream_STREAM_STDERR) {
				stderr = append(stderr, p.Data...)
			} else {
				stdout = append(stdout, p.Data...)
			}
		}
	}
}
