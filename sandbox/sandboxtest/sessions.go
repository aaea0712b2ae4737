package sandboxtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) sessions(t *testing.T) {
	b := s.Create(t, nil)
	in := func(id, script string) *dsecv1.CommandSpec { return &dsecv1.CommandSpec{Shell: script, SessionId: id} }
	t.Run("KeepsState", func(t *testing.T) {
		id := b.Session()
		b.Want(in(id, "cd /tmp"), 0, "")
		b.Want(in(id, "export X=kept"), 0, "")
		b.Want(in(id, "pwd; echo $X"), 0, "/tmp\nkept\n")
		b.WantShell("echo [$X]", "[]\n") // not elsewhere
		b.Want(in(id, "false"), 1, "")
		b.Want(in(id, "echo again"), 0, "again\n")
	})
	t.Run("Functions", func(t *testing.T) {
		s.real(t)
		id := b.Session()
		b.Want(in(id, "greet() { echo hello $1; }"), 0, "")
		b.Want(in(id, "greet you"), 0, "hello you\n")
		b.Want(in(id, "set -e; false; echo not reached"), 1, "")
	})
	t.Run("NothingWedgesIt", func(t *testing.T) {
		s.real(t)
		id := b.Session()
		b.Want(in(id, "cat <<EOF\nline\nEOF"), 0, "line\n")
		b.Want(in(id, "cat <<EOF\nnever ended"), 0, "never ended\n")
		b.Want(in(id, "sleep 600 & echo job"), 0, "job\n")
		if r := b.Exec(in(id, "if true; then (")); r.Command.Result.ExitCode == 0 {
			t.Errorf("a syntax error succeeded: %v", r)
		}
		b.Want(in(id, "cat"), 0, "") // its stdin is empty, not the session's
		b.Want(in(id, "echo still here"), 0, "still here\n")
	})
	t.Run("Timeout", func(t *testing.T) {
		s.real(t)
		id := b.Session()
		r := b.Exec(&dsecv1.CommandSpec{Shell: "sleep 600", SessionId: id, TimeoutSeconds: proto.Float64(0.3)})
		WantEnd(t, r.Command, "timed_out", byTask)
		b.Want(in(id, "echo goes on"), 0, "goes on\n")
	})
	t.Run("Exit", func(t *testing.T) {
		id := b.Session()
		b.Want(in(id, "exit 3"), 3, "")
		Eventually(t, "the session has ended", func() bool {
			list, err := b.N.Commands.ListSessions(b.Ctx, &dsecv1.ListSessionsRequest{SandboxId: b.ID})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range list.Sessions {
				if x.Id == id {
					return x.Ended && x.End.Kind == "exited"
				}
			}
			return false
		})
		_, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: in(id, "true")})
		WantCode(t, err, connect.CodeFailedPrecondition, id, "ended")
	})
	t.Run("OneAfterAnother", func(t *testing.T) {
		id := b.Session()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				script := fmt.Sprintf("echo begin %d >> /tmp/turns; sleep 0.02; echo end %d >> /tmp/turns", i, i)
				if _, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: in(id, script)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		lines := strings.Split(strings.TrimSpace(string(b.Shell("cat /tmp/turns").Stdout)), "\n")
		if len(lines) != 20 {
			t.Fatalf("turns %q", lines)
		}
		for i := 0; i < 20; i += 2 {
			if strings.TrimPrefix(lines[i], "begin") != strings.TrimPrefix(lines[i+1], "end") {
				t.Errorf("turn %d: %q then %q", i/2, lines[i], lines[i+1])
			}
		}
	})
	t.Run("Close", func(t *testing.T) {
		id := b.Session()
		st := b.Start(&dsecv1.StartCommandRequest{Command: in(id, "echo on; sleep 600")})
		st.Until("on")
		waiting := b.Start(&dsecv1.StartCommandRequest{Command: in(id, "echo never")})
		for range 2 { // idempotent
			if _, err := b.N.Commands.CloseSession(b.Ctx, &dsecv1.CloseSessionRequest{SandboxId: b.ID, SessionId: id}); err != nil {
				t.Fatal(err)
			}
		}
		if events := st.All(); events[len(events)-1].GetEnded().GetResult().GetSignal() != 9 {
			t.Errorf("the running command: %v", events)
		}
		events := waiting.All()
		WantEnd(t, events[len(events)-1].GetEnded(), "cannot_start", byUser)
	})
	t.Run("Named", func(t *testing.T) {
		open := func(id string) error {
			_, err := b.N.Commands.CreateSession(b.Ctx, &dsecv1.CreateSessionRequest{SandboxId: b.ID, SessionId: id, Cwd: "/tmp", Env: map[string]string{"A": "b"}})
			return err
		}
		if err := open("mine"); err != nil {
			t.Fatal(err)
		}
		WantCode(t, open("mine"), connect.CodeAlreadyExists)
		WantCode(t, open("Not This"), connect.CodeInvalidArgument)
		b.Want(in("mine", "pwd; echo $A"), 0, "/tmp\nb\n")
		_, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: in("other", "true")})
		WantCode(t, err, connect.CodeNotFound, "other")
	})
}
