package sandboxtest

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Box is one sandbox under test.
type Box struct {
	T       testing.TB
	N       *Node
	Ctx     context.Context
	ID      string
	Sandbox *dsecv1.Sandbox // as created
}

func contains(s, sub string) bool { return strings.Contains(s, sub) }

// Get returns the sandbox as it is now.
func (b *Box) Get() *dsecv1.Sandbox {
	b.T.Helper()
	resp, err := b.N.Sandboxes.GetSandbox(b.Ctx, &dsecv1.GetSandboxRequest{SandboxId: b.ID})
	if err != nil {
		b.T.Fatalf("get: %v", err)
	}
	return resp.Sandbox
}

// Exec runs a command to its end.
func (b *Box) Exec(spec *dsecv1.CommandSpec) *dsecv1.ExecResponse {
	b.T.Helper()
	resp, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: spec})
	if err != nil {
		b.T.Fatalf("exec %v: %v", spec, err)
	}
	return resp
}

// Shell runs a script to its end.
func (b *Box) Shell(script string) *dsecv1.ExecResponse {
	b.T.Helper()
	return b.Exec(&dsecv1.CommandSpec{Shell: script})
}

// Want runs a command and checks its exit code and stdout.
func (b *Box) Want(spec *dsecv1.CommandSpec, code int32, stdout string) *dsecv1.ExecResponse {
	b.T.Helper()
	r := b.Exec(spec)
	if r.Command.Result.ExitCode != code || string(r.Stdout) != stdout {
		b.T.Errorf("%v: exit %d, stdout %q, stderr %q, end %v; want exit %d, stdout %q",
			spec, r.Command.Result.ExitCode, r.Stdout, r.Stderr, r.Command.Result.End, code, stdout)
	}
	return r
}

// WantShell is Want for a script that succeeds.
func (b *Box) WantShell(script, stdout string) *dsecv1.ExecResponse {
	b.T.Helper()
	return b.Want(&dsecv1.CommandSpec{Shell: script}, 0, stdout)
}

// WantEnd checks how a command ended.
func WantEnd(t testing.TB, c *dsecv1.Command, kind string, blame dsecv1.Blame) {
	t.Helper()
	if end := c.GetResult().GetEnd(); end.GetKind() != kind || end.GetBlame() != blame {
		t.Errorf("command %v ended as %v, want %s by %v", c.GetSpec(), c.GetResult(), kind, blame)
	}
}

// Detach starts a background command.
func (b *Box) Detach(spec *dsecv1.CommandSpec) *dsecv1.Command {
	b.T.Helper()
	ev := b.Start(&dsecv1.StartCommandRequest{Command: spec, Detach: true}).All()
	if len(ev) != 1 || ev[0].GetStarted() == nil {
		b.T.Fatalf("detached start of %v: %v", spec, ev)
	}
	return ev[0].GetStarted()
}

// Command returns a command as it is now.
func (b *Box) Command(id string) *dsecv1.Command {
	b.T.Helper()
	resp, err := b.N.Commands.GetCommand(b.Ctx, &dsecv1.GetCommandRequest{SandboxId: b.ID, CommandId: id})
	if err != nil {
		b.T.Fatalf("get command %s: %v", id, err)
	}
	return resp.Command
}

// Stream is a command's event stream.
type Stream struct {
	b      *Box
	cancel context.CancelFunc
	next   func() bool
	event  func() *dsecv1.CommandEvent
	err    func() error
}

// Start opens a StartCommand stream.
func (b *Box) Start(req *dsecv1.StartCommandRequest) *Stream {
	b.T.Helper()
	req.SandboxId = b.ID
	ctx, cancel := context.WithCancel(b.Ctx)
	s, err := b.N.Commands.StartCommand(ctx, req)
	if err != nil {
		b.T.Fatalf("start: %v", err)
	}
	return &Stream{b: b, cancel: cancel, next: s.Receive, event: func() *dsecv1.CommandEvent { return s.Msg().Event }, err: s.Err}
}

// Attach opens an AttachCommand stream.
func (b *Box) Attach(req *dsecv1.AttachCommandRequest) *Stream {
	b.T.Helper()
	req.SandboxId = b.ID
	ctx, cancel := context.WithCancel(b.Ctx)
	s, err := b.N.Commands.AttachCommand(ctx, req)
	if err != nil {
		b.T.Fatalf("attach: %v", err)
	}
	return &Stream{b: b, cancel: cancel, next: s.Receive, event: func() *dsecv1.CommandEvent { return s.Msg().Event }, err: s.Err}
}

// Next returns the next event, nil at the stream's end; keepalives are left out.
func (s *Stream) Next() *dsecv1.CommandEvent {
	for s.next() {
		if ev := s.event(); ev.GetKeepAlive() == nil {
			return ev
		}
	}
	return nil
}

// Err is what the stream ended with.
func (s *Stream) Err() error { return s.err() }

// Close cuts the stream, as a client does that goes away.
func (s *Stream) Close() { s.cancel() }

// All reads to the end, which must be a good one.
func (s *Stream) All() (events []*dsecv1.CommandEvent) {
	s.b.T.Helper()
	defer s.Close()
	for ev := s.Next(); ev != nil; ev = s.Next() {
		events = append(events, ev)
	}
	if err := s.Err(); err != nil {
		s.b.T.Fatalf("stream: %v", err)
	}
	return events
}

// Text joins the output in events, of one stream or (0) of all; cut bytes count.
func Text(events []*dsecv1.CommandEvent, stream dsecv1.Stream) (text string, cut int64) {
	var sb strings.Builder
	for _, ev := range events {
		if o := ev.GetOutput(); o != nil && (stream == 0 || o.Stream == stream) {
			sb.Write(o.Data)
			cut += o.CutBytes
		}
	}
	return sb.String(), cut
}

// Until reads output until it holds the text; it returns what was read and the offset after it.
func (s *Stream) Until(text string) (got string, offset int64) {
	s.b.T.Helper()
	for ev := s.Next(); ev != nil; ev = s.Next() {
		if o := ev.GetOutput(); o != nil {
			got += string(o.Data)
			offset = o.Offset + int64(len(o.Data))
		}
		if contains(got, text) {
			return got, offset
		}
	}
	s.b.T.Fatalf("stream ended (%v) after %q, want %q", s.Err(), got, text)
	return "", 0
}

// Do speaks to a plain HTTP endpoint of the sandbox, for example "files?path=/x".
func (b *Box) Do(method, what string, body io.Reader) (status int, answer string) {
	b.T.Helper()
	req, err := http.NewRequestWithContext(b.Ctx, method, b.N.URL+"/v1/sandboxes/"+b.ID+"/"+what, body)
	if err != nil {
		b.T.Fatal(err)
	}
	resp, err := b.N.HTTP.Do(req)
	if err != nil {
		b.T.Fatalf("%s %s: %v", method, what, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.T.Fatalf("%s %s: %v", method, what, err)
	}
	return resp.StatusCode, string(data)
}

// Write writes a file.
func (b *Box) Write(path, content string) {
	b.T.Helper()
	if status, answer := b.Do("PUT", "files?path="+url.QueryEscape(path), strings.NewReader(content)); status != http.StatusNoContent {
		b.T.Fatalf("write %s: %d %s", path, status, answer)
	}
}

// Read reads a file.
func (b *Box) Read(path string) string {
	b.T.Helper()
	status, answer := b.Do("GET", "files?path="+url.QueryEscape(path), nil)
	if status != http.StatusOK {
		b.T.Fatalf("read %s: %d %s", path, status, answer)
	}
	return answer
}

// Session opens a session.
func (b *Box) Session() string {
	b.T.Helper()
	resp, err := b.N.Commands.CreateSession(b.Ctx, &dsecv1.CreateSessionRequest{SandboxId: b.ID})
	if err != nil {
		b.T.Fatalf("open session: %v", err)
	}
	return resp.Session.Id
}

// Signal sends a signal.
func (b *Box) Signal(command string, sig int32, tree bool) {
	b.T.Helper()
	if _, err := b.N.Commands.SignalCommand(b.Ctx, &dsecv1.SignalCommandRequest{SandboxId: b.ID, CommandId: command, Signal: sig, Tree: tree}); err != nil {
		b.T.Fatalf("signal %s: %v", command, err)
	}
}

// Events returns what is recorded.
func (b *Box) Events(after int64) (list []*dsecv1.Event) {
	b.T.Helper()
	s, err := b.N.Sandboxes.StreamEvents(b.Ctx, &dsecv1.StreamEventsRequest{SandboxId: b.ID, AfterSequence: after})
	if err != nil {
		b.T.Fatalf("events: %v", err)
	}
	for s.Receive() {
		list = append(list, s.Msg().Event)
	}
	if err := s.Err(); err != nil {
		b.T.Fatalf("events: %v", err)
	}
	return list
}

// AwaitEnd waits until the sandbox has ended.
func (b *Box) AwaitEnd() *dsecv1.Sandbox {
	b.T.Helper()
	s, err := b.N.Sandboxes.StreamEvents(b.Ctx, &dsecv1.StreamEventsRequest{SandboxId: b.ID, Follow: true})
	if err != nil {
		b.T.Fatalf("events: %v", err)
	}
	for s.Receive() {
		if s.Msg().Event.Type == "ended" {
			break
		}
	}
	_ = s.Close()
	Eventually(b.T, "the sandbox has stopped", func() bool {
		return b.Get().State == dsecv1.SandboxState_SANDBOX_STATE_STOPPED
	})
	return b.Get()
}

// code is the code of an error, 0 for none.
func code(err error) connect.Code {
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}
