package sandboxtest

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// restart: the edge ends and another one takes over; no sandbox ends, no byte is lost or doubled.
func (s *suite) restart(t *testing.T) {
	running := s.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(3600), Labels: map[string]string{"k": "v"}})
	short := s.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(1)})
	ended := s.Create(t, nil)
	ended.Shell("echo kept; exit 5")
	ended.Stop()
	script := "count 300 0.01"
	if s.caps.Real {
		script = "i=1; while [ $i -le 300 ]; do echo $i; i=$((i+1)); sleep 0.01; done"
	}
	st := running.Start(&dsecv1.StartCommandRequest{OperationId: "counter", Command: &dsecv1.CommandSpec{Shell: script}})
	id := st.Next().GetStarted().GetId()
	got, offset := st.Until("20\n")
	reader := running.Detach(&dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}).Id
	input := func(to *Box, command string, offset int64, data string, end bool) {
		t.Helper()
		if _, err := s.Commands.SendInput(to.Ctx, &dsecv1.SendInputRequest{SandboxId: to.ID, CommandId: command,
			Writer: "w", Offset: offset, Data: []byte(data), Close: end}); err != nil {
			t.Fatal(err)
		}
	}
	input(running, reader, 0, "before ", false)
	session := running.Session()
	running.Exec(&dsecv1.CommandSpec{Shell: "cd /tmp", SessionId: session})
	paused := s.Create(t, nil)
	stands := paused.Detach(&dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}).Id
	if s.caps.Pause {
		if _, err := s.Sandboxes.PauseSandbox(paused.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: paused.ID}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		s.Restart()
	}
	st.Close()
	if now := running.Get(); now.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING || now.ExpiresAt == nil ||
		now.ExpiresAt.AsTime().Sub(running.Sandbox.ExpiresAt.AsTime()).Abs().Seconds() > 5 || now.Spec.Labels["k"] != "v" {
		t.Errorf("after the restart: %v", now)
	}
	input(running, reader, 0, "before after", true) // its sender does not know what had arrived
	if text, _ := Text(running.Attach(&dsecv1.AttachCommandRequest{CommandId: reader}).All(), 0); text != "before after" {
		t.Errorf("input across the restart: %q", text)
	}
	rest, _ := Text(running.Attach(&dsecv1.AttachCommandRequest{CommandId: id, FromOffset: offset}).All(), 0)
	var want strings.Builder
	for i := 1; i <= 300; i++ {
		fmt.Fprintln(&want, i)
	}
	if got+rest != want.String() {
		t.Errorf("the client saw %d bytes, want %d", len(got+rest), want.Len())
	}
	events := running.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All()
	if text, cut := Text(events, 0); text != want.String() || cut != 0 {
		t.Errorf("the record holds %d bytes, %d cut; want %d", len(text), cut, want.Len())
	}
	if end := events[len(events)-1].GetEnded(); end.GetResult().GetExitCode() != 0 || end.OperationId != "counter" {
		t.Errorf("end %v", end)
	}
	again, err := s.Commands.Exec(running.Ctx, &dsecv1.ExecRequest{SandboxId: running.ID, OperationId: "counter", Command: &dsecv1.CommandSpec{Shell: script}})
	if err != nil || again.Command.Id != id || string(again.Stdout) != want.String() {
		t.Errorf("the same operation again: %v, %v", again.GetCommand(), err)
	}
	running.Want(&dsecv1.CommandSpec{Shell: "pwd", SessionId: session}, 0, "/tmp\n")
	if got := short.AwaitEnd(); got.End.Kind != "ttl_expired" {
		t.Errorf("short-lived: %v", got)
	}
	if got := ended.Get(); got.End.Kind != "stopped" {
		t.Errorf("ended before: %v", got)
	}
	if text, _ := Text(ended.Attach(&dsecv1.AttachCommandRequest{CommandId: "c1"}).All(), 0); text != "kept\n" {
		t.Errorf("record of the ended one: %q", text)
	}
	if s.caps.Pause {
		if got := paused.Get(); got.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			t.Errorf("paused before: %v", got)
		}
	}
	paused.WantShell("echo up", "up\n")
	input(paused, stands, 0, "went on", true)
	if text, _ := Text(paused.Attach(&dsecv1.AttachCommandRequest{CommandId: stands}).All(), 0); text != "went on" {
		t.Errorf("a command of the paused one: %q", text)
	}
}
