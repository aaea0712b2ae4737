package sandboxtest

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) commands(t *testing.T) {
	b := s.Create(t, &dsecv1.SandboxSpec{
		Env: map[string]string{"GREETING": "hello", "LATER": "sandbox"}, Secrets: map[string]string{"TOKEN": "s3cr3t-value"},
	})
	sub := func(name string, fn func(*testing.T)) { t.Run(name, fn) }
	sub("Argv", func(t *testing.T) {
		b.Want(&dsecv1.CommandSpec{Argv: []string{"echo", "two words", "$HOME", ";"}}, 0, "two words $HOME ;\n")
	})
	sub("Shell", func(t *testing.T) { b.WantShell("echo one; echo two && echo three", "one\ntwo\nthree\n") })
	sub("Streams", func(t *testing.T) {
		r := b.WantShell("echo out; echo err >&2", "out\n")
		if string(r.Stderr) != "err\n" {
			t.Errorf("stderr %q", r.Stderr)
		}
	})
	sub("Binary", func(t *testing.T) { b.WantShell(`printf 'a\0b\377c'`, "a\x00b\xffc") })
	sub("Env", func(t *testing.T) {
		b.Want(&dsecv1.CommandSpec{Shell: "echo $GREETING $LATER $MINE", Env: map[string]string{"LATER": "command", "MINE": "x y"}}, 0, "hello command x y\n")
	})
	sub("Secrets", func(t *testing.T) {
		r := b.Want(&dsecv1.CommandSpec{Shell: "echo $TOKEN $ONCE", Secrets: map[string]string{"ONCE": "another-s3cr3t"}}, 0, "s3cr3t-value another-s3cr3t\n")
		r.Stdout = nil
		for _, m := range []proto.Message{b.Get(), r.Command, b.Command(r.Command.Id)} {
			if text := m.(interface{ String() string }).String(); strings.Contains(text, "s3cr3t") {
				t.Errorf("a secret is shown: %s", text)
			}
		}
		for _, ev := range b.Events(0) {
			if strings.Contains(ev.String(), "s3cr3t") {
				t.Errorf("a secret is shown: %s", ev)
			}
		}
		if names := b.Get().SecretNames; len(names) != 1 || names[0] != "TOKEN" {
			t.Errorf("secret names %v", names)
		}
	})
	sub("Cwd", func(t *testing.T) { b.Want(&dsecv1.CommandSpec{Shell: "pwd", Cwd: "/tmp"}, 0, "/tmp\n") })
	sub("Stdin", func(t *testing.T) {
		long := strings.Repeat("0123456789abcde\n", 16<<10) // 256 KiB, and kept below the bound of the record
		b.Want(&dsecv1.CommandSpec{Argv: []string{"cat"}, Stdin: []byte(long)}, 0, long)
		b.Want(&dsecv1.CommandSpec{Argv: []string{"cat"}}, 0, "") // /dev/null
	})
	sub("User", func(t *testing.T) {
		b.Want(&dsecv1.CommandSpec{Shell: "whoami", User: "nobody", Cwd: "/tmp"}, 0, "nobody\n")
		b.Want(&dsecv1.CommandSpec{Shell: "whoami", User: "0"}, 0, "root\n")
		if s.caps.Real {
			b.Want(&dsecv1.CommandSpec{Shell: "id -u; id -g", User: "1234:4321", Cwd: "/"}, 0, "1234\n4321\n")
		}
	})
	sub("LargeOutput", func(t *testing.T) { s.largeOutput(t, b) })
	sub("OperationID", func(t *testing.T) { s.operationID(t, b) })
	sub("Order", func(t *testing.T) {
		one, two := b.Shell("true").Command, b.Shell("true").Command
		if two.Order != one.Order+1 || one.Id == two.Id {
			t.Errorf("orders %d and %d, ids %s and %s", one.Order, two.Order, one.Id, two.Id)
		}
	})
}

// largeOutput writes more than is kept: head and tail stay, what was cut is counted, the command is unharmed.
func (s *suite) largeOutput(t *testing.T, b *Box) {
	script := "count 400000"
	if s.caps.Real {
		script = "seq 400000"
	}
	r := b.Shell(script)
	res := r.Command.Result
	if res.ExitCode != 0 || res.OutputCutBytes <= 0 || res.OutputBytes != 2688895 ||
		int64(len(r.Stdout)) != res.OutputBytes-res.OutputCutBytes {
		t.Errorf("result %v with %d bytes kept", res, len(r.Stdout))
	}
	if !strings.HasPrefix(string(r.Stdout), "1\n2\n3\n") || !strings.HasSuffix(string(r.Stdout), "399999\n400000\n") {
		t.Errorf("head %.20q, tail %q", r.Stdout, r.Stdout[max(0, len(r.Stdout)-20):])
	}
	events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: r.Command.Id}).All()
	if text, cut := Text(events, 0); text != string(r.Stdout) || cut != res.OutputCutBytes {
		t.Errorf("attached: %d bytes, %d cut", len(text), cut)
	}
}

// operationID: the same id again runs nothing and returns the first one's result.
func (s *suite) operationID(t *testing.T, b *Box) {
	run := func(op, script string) *dsecv1.ExecResponse {
		r, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, OperationId: op, Command: &dsecv1.CommandSpec{Shell: script}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := run("op-1", "echo once >> /tmp/op; cat /tmp/op")
	again := run("op-1", "echo once >> /tmp/op; cat /tmp/op")
	if again.Command.Id != first.Command.Id || string(again.Stdout) != "once\n" {
		t.Errorf("again: command %s, stdout %q; first %s", again.Command.Id, again.Stdout, first.Command.Id)
	}
	b.WantShell("cat /tmp/op", "once\n")
	_, err := b.N.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, OperationId: "op-1", Command: &dsecv1.CommandSpec{Shell: "echo another"}})
	WantCode(t, err, connect.CodeAlreadyExists, "another command ("+first.Command.Id+")")
	// While it runs, the same id attaches.
	c := b.Start(&dsecv1.StartCommandRequest{OperationId: "op-2", Command: &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}})
	defer c.Close()
	id := c.Next().GetStarted().GetId()
	second := b.Start(&dsecv1.StartCommandRequest{OperationId: "op-2", Command: &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}})
	if got := second.Next().GetStarted().GetId(); got != id || id == "" {
		t.Errorf("second start gave command %q, first %q", got, id)
	}
	if _, err = b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("in"), Close: true}); err != nil {
		t.Fatal(err)
	}
	for _, st := range []*Stream{c, second} {
		if text, _ := Text(st.All(), 0); text != "in" {
			t.Errorf("output %q", text)
		}
	}
	_, err = b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("late")})
	WantCode(t, err, connect.CodeFailedPrecondition, "exited")
}
