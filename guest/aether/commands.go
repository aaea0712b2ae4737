package aether

import (
	"context"
	"os"

	"github.com/opendsec/dsec/guest/wire"
)

// Start starts a command in the group whose descriptors are given (sandbox.Group.Files; nil in VMs, and for
// a command in a session, which runs in the session's group).
func (c *Conn) Start(ctx context.Context, s *wire.Start, group []*os.File) (wire.Started, error) {
	var m wire.Started
	p, err := c.call(ctx, wire.KindStart, s.Append, group)
	if err != nil {
		return m, err
	}
	return m, m.Decode(p)
}

// List returns all commands that dsec-init knows.
func (c *Conn) List(ctx context.Context) ([]wire.CommandStatus, error) {
	p, err := c.call(ctx, wire.KindList, nil, nil)
	if err != nil {
		return nil, err
	}
	return wire.DecodeStatuses(p)
}

func (c *Conn) control(ctx context.Context, kind wire.Kind, m *wire.Control) error {
	_, err := c.call(ctx, kind, m.Append, nil)
	return err
}

// Resume makes dsec-init send a command's output from the offset on, and its exit. What lies before counts as stored.
func (c *Conn) Resume(ctx context.Context, command string, offset int64) error {
	return c.control(ctx, wire.KindResume, &wire.Control{Name: command, Offset: offset})
}

// Ack says that every byte below offset is stored: dsec-init forgets them. It only queues.
func (c *Conn) Ack(command string, offset int64) { c.w.ack(command, offset) }

// Release says that the exit is recorded: dsec-init forgets the command. It only queues.
func (c *Conn) Release(command string) { c.w.release(command) }

// Input writes to a command's stdin or terminal and returns when the bytes were written. With eof, stdin is
// closed after data. data is at most 256 KiB.
func (c *Conn) Input(ctx context.Context, command string, data []byte, eof bool) error {
	return c.InputAt(ctx, &wire.Input{Command: command, Data: data, EOF: eof})
}

// InputAt is Input by a writer that says where its bytes belong: what it sent before is not written again.
func (c *Conn) InputAt(ctx context.Context, m *wire.Input) error {
	if len(m.Data) > wire.MaxInput {
		return &wire.Error{Code: wire.CodeInvalid, Message: "at most 256 KiB of input at once"}
	}
	_, err := c.call(ctx, wire.KindInput, m.Append, nil)
	return err
}

// Signal sends a signal to the leader; with tree to every process of its group (session leader's process
// group and descendants in VMs). In a session it reaches what the shell has started; SIGKILL ends the shell
// too when that does not make it report.
func (c *Conn) Signal(ctx context.Context, command string, sig int32, tree bool) error {
	return c.control(ctx, wire.KindSignal, &wire.Control{Name: command, Value: sig, Flag: tree})
}

// Resize sets a terminal's size.
func (c *Conn) Resize(ctx context.Context, command string, columns, rows uint16) error {
	return c.control(ctx, wire.KindResize, &wire.Control{Name: command, Value: int32(uint32(columns)<<16 | uint32(rows))})
}

// OpenSession starts a stateful shell in the group; CloseSession ends it with its whole tree.
func (c *Conn) OpenSession(ctx context.Context, s *wire.OpenSession, group []*os.File) error {
	_, err := c.call(ctx, wire.KindOpenSession, s.Append, group)
	return err
}

// CloseSession ends a session with its whole tree and forgets it.
func (c *Conn) CloseSession(ctx context.Context, session string) error {
	return c.control(ctx, wire.KindCloseSession, &wire.Control{Name: session})
}

// HoldTimeouts stops the clocks of all commands' timeouts, or lets them run on: while a sandbox is frozen its
// commands use up nothing. Idempotent.
func (c *Conn) HoldTimeouts(ctx context.Context, hold bool) error {
	return c.control(ctx, wire.KindHold, &wire.Control{Flag: hold})
}
