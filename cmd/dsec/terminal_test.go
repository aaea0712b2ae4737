package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
	"golang.org/x/term"
)

// echoTerminal is the far end of a terminal: it says what it was given, until it gets "q".
type echoTerminal struct {
	dsecv1connect.UnimplementedCommandServiceHandler
	started chan *dsecv1.CommandSpec
	sizes   chan *dsecv1.TerminalSize
	input   chan []byte
}

func (e *echoTerminal) StartCommand(ctx context.Context, r *dsecv1.StartCommandRequest, s *connect.ServerStream[dsecv1.StartCommandResponse]) error {
	send := func(ev *dsecv1.CommandEvent) error { return s.Send(&dsecv1.StartCommandResponse{Event: ev}) }
	cmd := &dsecv1.Command{Id: "c1"}
	if err := send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Started{Started: cmd}}); err != nil {
		return err
	}
	e.started <- r.GetCommand()
	var offset int64
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-e.input:
			if bytes.Contains(b, []byte("q")) {
				cmd.Result = &dsecv1.CommandResult{ExitCode: 3, End: &dsecv1.Failure{Kind: "exited", Blame: dsecv1.Blame_BLAME_TASK}}
				return send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Ended{Ended: cmd}})
			}
			out := &dsecv1.Output{Offset: offset, Stream: dsecv1.Stream_STREAM_TERMINAL, Data: b}
			offset += int64(len(b))
			if err := send(&dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Output{Output: out}}); err != nil {
				return err
			}
		}
	}
}

func (e *echoTerminal) SendInput(_ context.Context, r *dsecv1.SendInputRequest) (*dsecv1.SendInputResponse, error) {
	e.input <- r.GetData()
	return &dsecv1.SendInputResponse{}, nil
}

func (e *echoTerminal) ResizeTerminal(_ context.Context, r *dsecv1.ResizeTerminalRequest) (*dsecv1.ResizeTerminalResponse, error) {
	e.sizes <- r.GetSize()
	return &dsecv1.ResizeTerminalResponse{}, nil
}

// TestTerminal runs `dsec shell` on a real terminal: raw while it runs, its size and all keys passed on, as it
// was when it ends.
func TestTerminal(t *testing.T) {
	e := &echoTerminal{started: make(chan *dsecv1.CommandSpec, 1), sizes: make(chan *dsecv1.TerminalSize, 4), input: make(chan []byte, 16)}
	mux := http.NewServeMux()
	mux.Handle(dsecv1connect.NewCommandServiceHandler(e))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(binary, "shell", string(sandbox.NewID("aaaa")))
	c.Env = append(os.Environ(), "DSEC_URL="+srv.URL, "DSEC_API_KEY=k", "TERM=xterm-test")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // descriptor 0: SIGWINCH goes to it
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
	defer timeout.Stop()
	var screen lockedBuffer
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(&screen, master) })

	spec := <-e.started
	if s := spec.GetTerminal(); s.GetColumns() != 100 || s.GetRows() != 30 || spec.GetEnv()["TERM"] != "xterm-test" {
		t.Errorf("started with %v", spec)
	}
	if err := pty.Setsize(master, &pty.Winsize{Cols: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	if s := <-e.sizes; s.GetColumns() != 120 || s.GetRows() != 40 {
		t.Errorf("resized to %v", s)
	}
	// Ctrl-C, Ctrl-Z and Ctrl-D are keys like others, and nothing is echoed but by the far end.
	const keys = "\x03\x1a\x04hello\r"
	if _, err := master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(screen.String(), keys) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // poll, until the deadline
	}
	if _, err := master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
	tty.Close()
	wg.Wait()
	if got := screen.String(); got != keys {
		t.Errorf("the screen shows %q", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
