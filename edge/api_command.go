package edge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// commandAPI serves CommandService.
type commandAPI struct{ e *Edge }

func (a *commandAPI) Exec(ctx context.Context, req *dsecv1.ExecRequest) (*dsecv1.ExecResponse, error) {
	b, leave, err := a.e.enterOrReplay(ctx, req.SandboxId, req.OperationId)
	if err != nil {
		return nil, wireError(err)
	}
	defer leave()
	c, order, err := b.launch(ctx, req.Command, req.OperationId)
	if err == nil && c != nil {
		err = c.awaitEnd(ctx)
	}
	if err != nil {
		return nil, wireError(err)
	}
	resp := &dsecv1.ExecResponse{}
	if resp.Command, err = b.showCommand(c, order); err == nil {
		resp.Stdout, resp.Stderr, err = b.collect(order)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return resp, nil
}

func (a *commandAPI) StartCommand(ctx context.Context, req *dsecv1.StartCommandRequest, stream *connect.ServerStream[dsecv1.StartCommandResponse]) error {
	b, leave, err := a.e.enterOrReplay(ctx, req.SandboxId, req.OperationId)
	if err != nil {
		return wireError(err)
	}
	defer leave()
	c, order, err := b.launch(ctx, req.Command, req.OperationId)
	if err != nil {
		return wireError(err)
	}
	send := func(ev *dsecv1.CommandEvent) error { return stream.Send(&dsecv1.StartCommandResponse{Event: ev}) }
	if err := stream.Send(nil); err != nil { // the command is accepted, though its turn may come later
		return err
	}
	if !req.Detach {
		return wireError(b.streamCommand(ctx, order, 0, true, send))
	}
	if c != nil {
		if err := c.awaitStart(ctx); err != nil {
			return wireError(err)
		}
	}
	cmd, err := b.showCommand(c, order)
	if err == nil {
		err = send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Started{Started: cmd}})
	}
	return wireError(err)
}

func (a *commandAPI) AttachCommand(ctx context.Context, req *dsecv1.AttachCommandRequest, stream *connect.ServerStream[dsecv1.AttachCommandResponse]) error {
	send := func(ev *dsecv1.CommandEvent) error { return stream.Send(&dsecv1.AttachCommandResponse{Event: ev}) }
	b, order, err := a.recorded(req.SandboxId, req.CommandId)
	if err != nil {
		return wireError(err)
	}
	if req.FromOffset < 0 {
		return wireError(invalid("from_offset is %d: want 0 or more", req.FromOffset))
	}
	b.mu.Lock()
	running := b.commands[order] != nil
	b.mu.Unlock()
	if running && !req.NoFollow { // waits for the sandbox to work: it must not be paused
		_, leave, err := a.e.enter(ctx, req.SandboxId)
		switch {
		case err == nil:
			defer leave()
		case !b.ending(): // one that is ending ends the command as well: that is what is waited for
			return wireError(err)
		}
	}
	return wireError(b.streamCommand(ctx, order, req.FromOffset, !req.NoFollow, send))
}

// recorded finds a command in the record of a sandbox in any state: reading it wakes nothing.
func (a *commandAPI) recorded(id, command string) (*box, int64, error) {
	b, err := a.e.find(id)
	if err != nil {
		return nil, 0, err
	}
	order, ok := record.OrderOf(command)
	if !ok {
		return nil, 0, b.unknownCommand(command)
	}
	return b, order, nil
}

func (a *commandAPI) ListCommands(_ context.Context, req *dsecv1.ListCommandsRequest) (*dsecv1.ListCommandsResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	size, err := pageSize(req.PageSize)
	if err != nil {
		return nil, wireError(err)
	}
	var after int64
	if req.PageToken != "" {
		if after, err = strconv.ParseInt(req.PageToken, 10, 64); err != nil {
			return nil, wireError(invalid("page_token %.64q is none of ours", req.PageToken))
		}
	}
	orders, forgotten := b.log.Orders(after)
	if req.RunningOnly {
		b.mu.Lock()
		orders = slices.DeleteFunc(orders, func(o int64) bool { return b.commands[o] == nil })
		b.mu.Unlock()
	}
	resp := &dsecv1.ListCommandsResponse{ForgottenCommands: forgotten}
	for i, order := range orders {
		if i == size {
			resp.NextPageToken = strconv.FormatInt(orders[i-1], 10)
			break
		}
		cmd, err := b.showCommand(nil, order)
		if err != nil {
			continue // forgotten meanwhile
		}
		resp.Commands = append(resp.Commands, cmd)
	}
	return resp, nil
}

func (a *commandAPI) GetCommand(_ context.Context, req *dsecv1.GetCommandRequest) (*dsecv1.GetCommandResponse, error) {
	b, order, err := a.recorded(req.SandboxId, req.CommandId)
	if err != nil {
		return nil, wireError(err)
	}
	cmd, err := b.showCommand(nil, order)
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.GetCommandResponse{Command: cmd}, nil
}

// running passes the gate with a running command and runs fn on it.
func (a *commandAPI) running(ctx context.Context, id, command string, fn func(*command, *aether.Conn) error) error {
	b, leave, err := a.e.enter(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	order, ok := record.OrderOf(command)
	if !ok {
		return b.unknownCommand(command)
	}
	b.mu.Lock()
	c := b.commands[order]
	b.mu.Unlock()
	if c == nil {
		ended, err := b.command(order)
		if err != nil {
			return err
		}
		return &endedCommand{ended}
	}
	if err := c.awaitStart(ctx); err != nil {
		return err
	}
	conn, _, err := b.channel()
	if err != nil {
		return err
	}
	return fn(c, conn)
}

func (a *commandAPI) SendInput(ctx context.Context, req *dsecv1.SendInputRequest) (*dsecv1.SendInputResponse, error) {
	if len(req.Writer) > maxWriter {
		return nil, wireError(invalid("writer of %d bytes: want at most %d", len(req.Writer), maxWriter))
	}
	if req.Offset < 0 || req.Offset > math.MaxInt64/2 || req.Offset > 0 && req.Writer == "" {
		return nil, wireError(invalid("offset is %d: want 0 or more, and a writer whose offset it is", req.Offset))
	}
	err := a.running(ctx, req.SandboxId, req.CommandId, func(c *command, conn *aether.Conn) error {
		m := wire.Input{Command: c.id, Writer: req.Writer, Offset: req.Offset}
		for data := req.Data; ; {
			n := min(len(data), wire.MaxInput)
			last := n == len(data)
			m.Data, m.EOF = data[:n], req.Close && last
			if err := conn.InputAt(ctx, &m); err != nil || last {
				return inputError(err)
			}
			data = data[n:]
			m.Offset += int64(n)
		}
	})
	return &dsecv1.SendInputResponse{}, wireError(err)
}

// maxWriter bounds the name of a writer of input.
const maxWriter = 64

// inputError tells a stdin that is closed, which stays so, from a channel that is.
func inputError(err error) error {
	var guest *wire.Error
	if errors.As(err, &guest) && guest.Code == wire.CodeClosed {
		return fmt.Errorf("%s: %w", guest.Message, sandbox.ErrFailedPrecondition)
	}
	return err
}

func (a *commandAPI) SignalCommand(ctx context.Context, req *dsecv1.SignalCommandRequest) (*dsecv1.SignalCommandResponse, error) {
	sig := req.Signal
	if sig == 0 {
		sig = 15
	}
	if sig < 1 || sig > 64 {
		return nil, wireError(invalid("signal is %d: want 1 to 64, or 0 for SIGTERM", sig))
	}
	err := a.running(ctx, req.SandboxId, req.CommandId, func(c *command, conn *aether.Conn) error {
		return c.signal(ctx, conn, sig, req.Tree)
	})
	return &dsecv1.SignalCommandResponse{}, wireError(err)
}

// signal sends a signal. SIGKILL to the tree takes the control group, from which nothing escapes.
func (c *command) signal(ctx context.Context, conn *aether.Conn, sig int32, tree bool) error {
	c.mu.Lock()
	if c.signals == nil {
		c.signals = map[int32]bool{}
	}
	c.signals[sig] = true
	group := c.group
	c.killed = c.killed || sig == 9 && tree
	c.mu.Unlock()
	if tree && group != nil {
		if sig == 9 {
			return group.Kill()
		}
		return group.Signal(int(sig))
	}
	return conn.Signal(ctx, c.id, sig, tree)
}

func (a *commandAPI) ResizeTerminal(ctx context.Context, req *dsecv1.ResizeTerminalRequest) (*dsecv1.ResizeTerminalResponse, error) {
	size := req.GetSize()
	if size.GetColumns() < 1 || size.GetColumns() > 65535 || size.GetRows() < 1 || size.GetRows() > 65535 {
		return nil, wireError(invalid("a terminal has 1 to 65535 columns and rows, not %d and %d", size.GetColumns(), size.GetRows()))
	}
	err := a.running(ctx, req.SandboxId, req.CommandId, func(c *command, conn *aether.Conn) error {
		return conn.Resize(ctx, c.id, uint16(size.Columns), uint16(size.Rows))
	})
	return &dsecv1.ResizeTerminalResponse{}, wireError(err)
}

func (a *commandAPI) CreateSession(ctx context.Context, req *dsecv1.CreateSessionRequest) (*dsecv1.CreateSessionResponse, error) {
	b, leave, err := a.e.enter(ctx, req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	defer leave()
	s, err := b.openSession(ctx, req)
	if err != nil {
		return nil, wireError(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &dsecv1.CreateSessionResponse{Session: s.proto()}, nil
}

func (a *commandAPI) ListSessions(_ context.Context, req *dsecv1.ListSessionsRequest) (*dsecv1.ListSessionsResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	resp := &dsecv1.ListSessionsResponse{}
	for _, id := range sortedKeys(b.sessions) {
		resp.Sessions = append(resp.Sessions, b.sessions[id].proto())
	}
	return resp, nil
}

func (a *commandAPI) CloseSession(ctx context.Context, req *dsecv1.CloseSessionRequest) (*dsecv1.CloseSessionResponse, error) {
	b, leave, err := a.e.enter(ctx, req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	defer leave()
	return &dsecv1.CloseSessionResponse{}, wireError(b.closeSession(ctx, req.SessionId))
}
