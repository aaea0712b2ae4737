package sandboxtest

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// AwaitState waits until the sandbox is in a state.
func (b *Box) AwaitState(want dsecv1.SandboxState) *dsecv1.Sandbox {
	b.T.Helper()
	for {
		got := b.Get()
		if got.State == want {
			return got
		}
		if b.Ctx.Err() != nil || got.End != nil {
			b.T.Fatalf("waited for %v: %v", want, got)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// onTimeout: sandboxes that are paused when their time runs out, and how long they stay so.
func (s *suite) onTimeout(t *testing.T) {
	pausing := func(ttl, idle float64) *dsecv1.SandboxSpec {
		spec := &dsecv1.SandboxSpec{OnTimeout: dsecv1.OnTimeout_ON_TIMEOUT_PAUSE, IdleTimeoutSeconds: &idle}
		if ttl > 0 {
			spec.TtlSeconds = &ttl
		}
		return spec
	}
	if !s.caps.Pause {
		_, err := s.Creator.CreateResolved(Context(t), s.Request(pausing(60, 0)))
		WantCode(t, err, connect.CodeUnimplemented, "on_timeout")
		return
	}
	extend := func(b *Box, ttl float64) {
		t.Helper()
		if _, err := s.Sandboxes.ExtendSandbox(b.Ctx, &dsecv1.ExtendSandboxRequest{SandboxId: b.ID, TtlSeconds: &ttl}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("TTL", func(t *testing.T) {
		b := s.Create(t, pausing(1, 0))
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}})
		id := st.Next().GetStarted().GetId()
		got := b.AwaitState(dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
		if got.PausedUntil == nil || got.ExpiresAt != nil || got.RunningCommands != 1 {
			t.Errorf("paused: %v", got)
		}
		// Woken, it has as much time again.
		resp, err := s.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
		if err != nil || resp.Sandbox.ExpiresAt == nil || resp.Sandbox.PausedUntil != nil {
			t.Errorf("resumed: %v, %v", resp, err)
		}
		b.AwaitState(dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
		extend(b, 3600)
		if b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			t.Error("extending woke it")
		}
		if _, err := s.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("on"), Close: true}); err != nil {
			t.Fatal(err)
		}
		if text, _ := Text(st.All(), 0); text != "on" { // the same process
			t.Errorf("output %q", text)
		}
	})
	t.Run("Idle", func(t *testing.T) {
		b := s.Create(t, pausing(0, 0.3))
		for range 3 {
			b.AwaitState(dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
			b.WantShell("sleep 0.4; echo up", "up\n") // it holds it
		}
	})
	t.Run("Bound", func(t *testing.T) {
		spec := pausing(0.2, 0)
		spec.PausedSeconds = proto.Float64(0.3)
		if got := s.Create(t, spec).AwaitEnd(); got.End.Kind != "ttl_expired" || got.End.Blame != dsecv1.Blame_BLAME_POLICY || got.PausedUntil != nil {
			t.Errorf("ended: %v", got)
		}
		b := s.Create(t, &dsecv1.SandboxSpec{PausedSeconds: proto.Float64(0.3)}) // whoever paused it
		if _, err := s.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
		if got := b.AwaitEnd(); got.End.Kind != "ttl_expired" {
			t.Errorf("ended: %v", got)
		}
	})
	t.Run("ManualResume", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{ManualResume: true})
		if _, err := s.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
		_, err := s.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
		WantCode(t, err, connect.CodeFailedPrecondition, "is paused", "resume it first")
		if status, answer := b.Do("GET", "files?path=/etc/hostname", nil); status != 412 || !strings.Contains(answer, `"reason":"paused"`) {
			t.Errorf("read a file: %d %s", status, answer)
		}
		if b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			t.Error("a request woke it")
		}
		if _, err := s.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
		b.WantShell("echo up", "up\n")
	})
}
