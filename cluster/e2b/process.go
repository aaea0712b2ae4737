package e2b

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/process"
	"github.com/opendsec/dsec/cluster/e2b/envd/process/processconnect"
)

// process serves programs of one sandbox as commands of our API. A command is found by the id of its leader, or a tag.
type process struct {
	processconnect.UnimplementedProcessHandler
	d *Door
}

// Start runs a program. The deadline of the call is the program's: it is killed then, as clients expect.
func (p process) Start(ctx context.Context, req *pb.StartRequest, out *connect.ServerStream[pb.StartResponse]) error {
	t := targetOf(ctx)
	spec, err := commandSpec(req, t.user)
	if err != nil {
		return rpcError(t.id, err)
	}
	if at, ok := ctx.Deadline(); ok {
		left := time.Until(at)
		if left <= 0 {
			return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline had passed before the program was started"))
		}
		spec.TimeoutSeconds = proto.Float64(left.Seconds())
	}
	st, err := p.d.commands.StartCommand(ctx, &dsecv1.StartCommandRequest{SandboxId: string(t.id), Command: spec})
	if err != nil {
		return p.failed(ctx, err)
	}
	defer st.Close()
	for st.Receive() {
		for _, e := range translate(st.Msg().GetEvent()) {
			if err := out.Send(&pb.StartResponse{Event: e}); err != nil {
				return err
			}
		}
		if done, err := ended(st.Msg().GetEvent()); done {
			return err
		}
	}
	return p.broken(ctx, st.Err())
}

// commandSpec translates. Error: 400.
func commandSpec(req *pb.StartRequest, user string) (*dsecv1.CommandSpec, error) {
	c := req.GetProcess()
	if c.GetCmd() == "" {
		return nil, refused(400, "process.cmd is missing")
	}
	spec := &dsecv1.CommandSpec{
		Argv: append([]string{c.GetCmd()}, c.GetArgs()...), Env: c.GetEnvs(), Cwd: c.GetCwd(), User: user, Tag: req.GetTag(),
		KeepStdinOpen: req.Stdin == nil || req.GetStdin(),
	}
	if req.Pty != nil {
		size, err := terminalSize(req.Pty)
		if err != nil {
			return nil, err
		}
		spec.Terminal, spec.KeepStdinOpen = size, false
	}
	return spec, nil
}

func terminalSize(p *pb.PTY) (*dsecv1.TerminalSize, error) {
	s := p.GetSize()
	if s.GetCols() == 0 || s.GetRows() == 0 || s.GetCols() > 65535 || s.GetRows() > 65535 {
		return nil, refused(400, "a terminal of %d columns and %d rows: want 1 to 65535 of each", s.GetCols(), s.GetRows())
	}
	return &dsecv1.TerminalSize{Columns: s.GetCols(), Rows: s.GetRows()}, nil
}

// Connect sends a program's output from its beginning, as far as it is recorded, and goes on with it; and the end of one
// that has ended.
func (p process) Connect(ctx context.Context, req *pb.ConnectRequest, out *connect.ServerStream[pb.ConnectResponse]) error {
	t := targetOf(ctx)
	c, err := p.d.find(ctx, req.GetProcess(), false)
	if err != nil {
		return rpcError(t.id, err)
	}
	st, err := p.d.commands.AttachCommand(ctx, &dsecv1.AttachCommandRequest{SandboxId: string(t.id), CommandId: c.GetId()})
	if err != nil {
		return p.failed(ctx, err)
	}
	defer st.Close()
	if err := out.Send(&pb.ConnectResponse{Event: started(c)}); err != nil {
		return err
	}
	for st.Receive() {
		if st.Msg().GetEvent().GetStarted() != nil {
			continue
		}
		for _, e := range translate(st.Msg().GetEvent()) {
			if err := out.Send(&pb.ConnectResponse{Event: e}); err != nil {
				return err
			}
		}
		if done, err := ended(st.Msg().GetEvent()); done {
			return err
		}
	}
	return p.broken(ctx, st.Err())
}

func (p process) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time for this program ran out"))
	}
	return rpcError(targetOf(ctx).id, err)
}

// broken is for a stream that stopped without the program's end: never an exit of 0.
func (p process) broken(ctx context.Context, err error) error {
	if err == nil {
		err = connect.NewError(connect.CodeUnavailable, errors.New("the output broke off before the program's end: connect to it again"))
	}
	return p.failed(ctx, err)
}

// List shows the programs that run.
func (p process) List(ctx context.Context, _ *pb.ListRequest) (*pb.ListResponse, error) {
	out := &pb.ListResponse{}
	err := p.d.eachCommand(ctx, true, func(c *dsecv1.Command) {
		out.Processes = append(out.Processes, infoOf(c))
	})
	if err != nil {
		return nil, rpcError(targetOf(ctx).id, err)
	}
	return out, nil
}

func infoOf(c *dsecv1.Command) *pb.ProcessInfo {
	s := c.GetSpec()
	argv := s.GetArgv()
	if len(argv) == 0 { // one of another door
		argv = []string{"/bin/sh", "-c", s.GetShell()}
	}
	info := &pb.ProcessInfo{Pid: uint32(c.GetPid()), Config: &pb.ProcessConfig{Cmd: argv[0], Args: argv[1:], Envs: s.GetEnv()}}
	if s.GetCwd() != "" {
		info.Config.Cwd = proto.String(s.GetCwd())
	}
	if s.GetTag() != "" {
		info.Tag = proto.String(s.GetTag())
	}
	return info
}

func (p process) Update(ctx context.Context, req *pb.UpdateRequest) (*pb.UpdateResponse, error) {
	t := targetOf(ctx)
	if req.Pty == nil {
		return &pb.UpdateResponse{}, nil
	}
	size, err := terminalSize(req.Pty)
	if err != nil {
		return nil, rpcError(t.id, err)
	}
	c, err := p.d.find(ctx, req.GetProcess(), true)
	if err == nil {
		_, err = p.d.commands.ResizeTerminal(ctx, &dsecv1.ResizeTerminalRequest{SandboxId: string(t.id), CommandId: c.GetId(), Size: size})
	}
	if err != nil {
		return nil, rpcError(t.id, err)
	}
	return &pb.UpdateResponse{}, nil
}

// SendSignal signals the leader; what kills, kills all that the program started.
func (p process) SendSignal(ctx context.Context, req *pb.SendSignalRequest) (*pb.SendSignalResponse, error) {
	t := targetOf(ctx)
	n := int32(req.GetSignal())
	if req.GetSignal() != pb.Signal_SIGNAL_SIGTERM && req.GetSignal() != pb.Signal_SIGNAL_SIGKILL {
		return nil, rpcError(t.id, refused(400, "signal %d: want SIGNAL_SIGTERM or SIGNAL_SIGKILL", n))
	}
	c, err := p.d.find(ctx, req.GetProcess(), true)
	if err == nil {
		_, err = p.d.commands.SignalCommand(ctx, &dsecv1.SignalCommandRequest{
			SandboxId: string(t.id), CommandId: c.GetId(), Signal: n, Tree: req.GetSignal() == pb.Signal_SIGNAL_SIGKILL,
		})
		if connect.CodeOf(err) == connect.CodeFailedPrecondition && !gone(err) {
			err = errNoProcess(req.GetProcess()) // it ended meanwhile
		}
		if err == nil && req.GetSignal() == pb.Signal_SIGNAL_SIGKILL {
			p.d.awaitEnd(ctx, c.GetId())
		}
	}
	if err != nil {
		return nil, rpcError(t.id, err)
	}
	return &pb.SendSignalResponse{}, nil
}

// endWait bounds how long a kill waits for the end that it causes, so that a client that asks again is told that it is over.
const endWait = 2 * time.Second

func (d *Door) awaitEnd(ctx context.Context, command string) {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	for ctx.Err() == nil {
		resp, err := d.commands.GetCommand(ctx, &dsecv1.GetCommandRequest{SandboxId: string(targetOf(ctx).id), CommandId: command})
		if err != nil || resp.GetCommand().GetResult() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// errNoProcess is not_found for clients.
func errNoProcess(s *pb.ProcessSelector) error {
	if s.GetTag() != "" {
		return refused(404, "process with tag %.100q was not found", s.GetTag())
	}
	return refused(404, "process with pid %d was not found", s.GetPid())
}

// eachCommand calls fn for every command, oldest first.
func (d *Door) eachCommand(ctx context.Context, running bool, fn func(*dsecv1.Command)) error {
	for token := ""; ; {
		resp, err := d.commands.ListCommands(ctx, &dsecv1.ListCommandsRequest{SandboxId: string(targetOf(ctx).id), RunningOnly: running, PageSize: 1000, PageToken: token})
		if err != nil {
			return err
		}
		for _, c := range resp.GetCommands() {
			fn(c)
		}
		if token = resp.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// find returns the newest command that a selector means: one that runs, else (unless only those will do) one that has
// ended. Error: 404.
func (d *Door) find(ctx context.Context, s *pb.ProcessSelector, running bool) (found *dsecv1.Command, err error) {
	means := func(c *dsecv1.Command) bool {
		if s.GetTag() != "" {
			return c.GetSpec().GetTag() == s.GetTag()
		}
		return s.GetPid() != 0 && c.GetPid() == int32(s.GetPid())
	}
	if s.GetTag() == "" && s.GetPid() == 0 {
		return nil, refused(400, "the process is missing: give a pid or a tag")
	}
	for _, only := range []bool{true, false} {
		if !only && running {
			break
		}
		if err := d.eachCommand(ctx, only, func(c *dsecv1.Command) {
			if means(c) {
				found = c
			}
		}); err != nil {
			return nil, err
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, errNoProcess(s)
}

// failureText is what an end without an exit code is called.
func failureText(f *dsecv1.Failure) string {
	return fmt.Sprintf("%s: %s", f.GetKind(), f.GetMessage())
}
