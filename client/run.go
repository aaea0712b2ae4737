package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Run is a command to run and what to do with what it says.
type Run struct {
	SandboxID string
	Spec      *dsecv1.CommandSpec
	// OperationID; empty = drawn. The same id again runs nothing and returns the same command.
	OperationID string
	// Stdin is sent as it is read; nil = none. Run does not wait for a Read that blocks after the command ended.
	Stdin io.Reader
	// Started is called once, when the command runs. May be nil.
	Started func(*dsecv1.Command)
	// Output is called with each piece in order: no byte twice, none left out but those that the record cut
	// (CutBytes). An error of it ends Run (not the command). May be nil.
	Output func(*dsecv1.Output) error
}

// silence is how long a stream may say nothing (keep-alives come every 20 s) before it counts as broken.
const silence = 70 * time.Second

// inputChunk is what one SendInput carries.
const inputChunk = 64 << 10

// errStream says that a stream ended without the command's end.
var errStream = errors.New("the stream ended before the command did")

// Run runs a command and returns it once it has ended. A stream that breaks is attached again from where it
// broke, for Options.Patience without progress; then the error says so, and the command goes on: Attach finds
// it by its id. How the command ended is in the result (Result.End, Result.ExitCode) and is no error.
func (c *Client) Run(ctx context.Context, r Run) (*dsecv1.Command, error) {
	if r.OperationID == "" {
		r.OperationID = NewOperationID()
	}
	if r.Stdin != nil {
		r.Spec.KeepStdinOpen = true
	}
	f := &follower{c: c, sandboxID: r.SandboxID, output: r.Output}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.started = func(cmd *dsecv1.Command) {
		if r.Started != nil {
			r.Started(cmd)
		}
		if r.Stdin != nil {
			go c.pump(ctx, cancel, r.SandboxID, cmd.GetId(), r.Stdin)
		}
	}
	return f.follow(ctx, func(ctx context.Context) (eventStream, error) {
		s, err := c.Commands.StartCommand(ctx, &dsecv1.StartCommandRequest{SandboxId: r.SandboxID, Command: r.Spec, OperationId: r.OperationID})
		return startStream{s}, err
	})
}

// Start starts a command in the background and returns it running.
func (c *Client) Start(ctx context.Context, sandboxID string, spec *dsecv1.CommandSpec) (*dsecv1.Command, error) {
	op := NewOperationID()
	for b := c.backoff(); ; {
		cmd, err := c.startOnce(ctx, &dsecv1.StartCommandRequest{SandboxId: sandboxID, Command: spec, OperationId: op, Detach: true})
		if err == nil || !broken(err) || !b.wait(ctx) {
			return cmd, c.explain(err)
		}
	}
}

func (c *Client) startOnce(ctx context.Context, r *dsecv1.StartCommandRequest) (*dsecv1.Command, error) {
	s, err := c.Commands.StartCommand(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Receive() {
		if cmd := s.Msg().GetEvent().GetStarted(); cmd != nil {
			return cmd, nil
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return nil, errStream
}

// Attach follows a command's output from an offset to its end, as Run does.
func (c *Client) Attach(ctx context.Context, sandboxID, commandID string, from int64, output func(*dsecv1.Output) error) (*dsecv1.Command, error) {
	f := &follower{c: c, sandboxID: sandboxID, id: commandID, next: from, output: output}
	return f.follow(ctx, f.attach)
}

// follower keeps the place in a command's output.
type follower struct {
	c         *Client
	sandboxID string
	id        string // of the command, once it is known
	next      int64  // offset of the first byte not yet delivered
	output    func(*dsecv1.Output) error
	started   func(*dsecv1.Command)
}

// outputError is an error of the caller's own Output.
type outputError struct{ error }

func (e outputError) Unwrap() error { return e.error }

func (f *follower) attach(ctx context.Context) (eventStream, error) {
	s, err := f.c.Commands.AttachCommand(ctx, &dsecv1.AttachCommandRequest{SandboxId: f.sandboxID, CommandId: f.id, FromOffset: f.next})
	return attachStream{s}, err
}

func (f *follower) follow(ctx context.Context, open func(context.Context) (eventStream, error)) (*dsecv1.Command, error) {
	for b := f.c.backoff(); ; {
		next, id := f.next, f.id
		cmd, err := f.once(ctx, open)
		var own outputError
		switch {
		case cmd != nil:
			return cmd, nil
		case errors.As(err, &own):
			return nil, own.error
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !broken(err):
			return nil, f.c.explain(err)
		}
		if f.id != "" {
			open = f.attach
		}
		if f.next > next || f.id != id {
			b.progress()
		}
		if !b.wait(ctx) {
			if f.id == "" {
				return nil, f.c.explain(err)
			}
			return nil, fmt.Errorf("follow command %s of sandbox %s from byte %d: it goes on, the connection does not (see `dsec logs`): %w",
				f.id, f.sandboxID, f.next, f.c.explain(err))
		}
	}
}

// broken tells whether an error is the connection's, or the service's way to say "in a moment".
func broken(err error) bool {
	return errors.Is(err, errStream) || !connect.IsWireError(err) || connect.CodeOf(err) == connect.CodeUnavailable
}

// once follows one stream. It returns the command when it has ended.
func (f *follower) once(ctx context.Context, open func(context.Context) (eventStream, error)) (*dsecv1.Command, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Receive() {
		quiet.Reset(silence)
		f.c.reached.Store(true)
		switch ev := s.Event().GetEvent().(type) {
		case *dsecv1.CommandEvent_Started:
			if f.id == "" {
				f.id = ev.Started.GetId()
				if f.started != nil {
					f.started(ev.Started)
				}
			}
		case *dsecv1.CommandEvent_Output:
			if err := f.deliver(ev.Output); err != nil {
				return nil, outputError{err}
			}
		case *dsecv1.CommandEvent_Ended:
			return ev.Ended, nil
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return nil, errStream
}

// deliver passes a piece on, without what was delivered before.
func (f *follower) deliver(o *dsecv1.Output) error {
	end := o.GetOffset() + int64(len(o.GetData()))
	if end <= f.next {
		return nil
	}
	if skip := f.next - o.GetOffset(); skip > 0 {
		o = &dsecv1.Output{Offset: f.next, Stream: o.GetStream(), Data: o.GetData()[skip:]}
	}
	if f.output != nil {
		if err := f.output(o); err != nil {
			return err
		}
	}
	f.next = end
	return nil
}

// pump sends input until it ends. Each piece says where it belongs, so that one that may or may not have arrived is sent
// again by the client, for as long as its patience lasts; then Run ends with that reason.
func (c *Client) pump(ctx context.Context, fail context.CancelCauseFunc, sandboxID, commandID string, in io.Reader) {
	buf := make([]byte, inputChunk)
	writer, offset := NewOperationID(), int64(0)
	for ctx.Err() == nil {
		n, err := in.Read(buf)
		req := &dsecv1.SendInputRequest{SandboxId: sandboxID, CommandId: commandID, Data: buf[:n], Close: err != nil,
			Writer: writer, Offset: offset}
		if n > 0 || err != nil {
			if _, serr := c.Commands.SendInput(ctx, req); serr != nil {
				// A command that has ended, or closed its stdin, wants no more.
				if code := connect.CodeOf(serr); code != connect.CodeFailedPrecondition && code != connect.CodeNotFound && ctx.Err() == nil {
					fail(fmt.Errorf("send input to command %s: %w", commandID, serr))
				}
				return
			}
		}
		if err != nil {
			return
		}
		offset += int64(n)
	}
}
