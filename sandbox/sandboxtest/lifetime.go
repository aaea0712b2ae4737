package sandboxtest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit/patience"
)

func (s *suite) pause(t *testing.T) {
	if !s.caps.Pause {
		t.Skip("the driver cannot pause")
	}
	b := s.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(3600)})
	pause := func() {
		t.Helper()
		for range 2 { // idempotent
			resp, err := s.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID})
			if err != nil || resp.Sandbox.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
				t.Fatalf("pause: %v, %v", resp, err)
			}
		}
	}
	t.Run("Freezes", func(t *testing.T) {
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}})
		defer st.Close()
		id := st.Next().GetStarted().GetId()
		pause()
		got := b.Get()
		if got.ExpiresAt != nil || got.RunningCommands != 1 {
			t.Errorf("paused: %v", got)
		}
		if b.Command(id).Result != nil { // reading the record wakes nothing
			t.Error("the command ended")
		}
		if b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			t.Error("reading resumed it")
		}
		for range 2 {
			resp, err := s.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
			if err != nil || resp.Sandbox.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING || resp.Sandbox.ExpiresAt == nil {
				t.Fatalf("resume: %v, %v", resp, err)
			}
		}
		if _, err := s.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("on"), Close: true}); err != nil {
			t.Fatal(err)
		}
		if text, _ := Text(st.All(), 0); text != "on" {
			t.Errorf("output %q", text)
		}
	})
	t.Run("AnyRequestResumes", func(t *testing.T) {
		for name, use := range map[string]func(){
			"exec":    func() { b.WantShell("echo up", "up\n") },
			"write":   func() { b.Write("/tmp/x", "y") },
			"stat":    func() { _, _ = s.Files.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/tmp"}) },
			"session": func() { b.Session() },
		} {
			pause()
			use()
			if b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
				t.Errorf("%s did not resume it", name)
			}
		}
	})
	t.Run("TimeoutsAreHeld", func(t *testing.T) {
		timeout := time.Duration(patience.Factor()) * 3 * time.Second
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "echo on; sleep 0.2; echo off", TimeoutSeconds: proto.Float64(timeout.Seconds())}})
		st.Until("on")
		pause()
		time.Sleep(timeout + 500*time.Millisecond) // longer than the timeout; nothing can be waited for
		if _, err := s.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
		events := st.All()
		WantEnd(t, events[len(events)-1].GetEnded(), "exited", byTask)
		r := b.Exec(&dsecv1.CommandSpec{Shell: "sleep 600", TimeoutSeconds: proto.Float64(0.1)})
		WantEnd(t, r.Command, "timed_out", byTask)
	})
	t.Run("ManyAtOnce", func(t *testing.T) {
		pause()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { b.WantShell("echo up", "up\n") })
		}
		wg.Wait()
	})
	t.Run("StopsWhilePaused", func(t *testing.T) {
		b := s.Create(t, nil)
		if _, err := s.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
		b.Stop()
	})
}

// Stop stops the sandbox and checks that it is.
func (b *Box) Stop() *dsecv1.Sandbox {
	b.T.Helper()
	resp, err := b.N.Sandboxes.StopSandbox(b.Ctx, &dsecv1.StopSandboxRequest{SandboxId: b.ID})
	if err != nil {
		b.T.Fatalf("stop: %v", err)
	}
	if resp.Sandbox.State != dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
		b.T.Fatalf("stopped: %v", resp.Sandbox)
	}
	return resp.Sandbox
}

func (s *suite) lifetime(t *testing.T) {
	t.Run("Stop", func(t *testing.T) {
		b := s.Create(t, nil)
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "echo on; sleep 600"}})
		st.Until("on")
		first := b.Stop()
		if first.End.Kind != "stopped" || first.End.Blame != byUser || first.EndedAt == nil {
			t.Errorf("stopped: %v", first)
		}
		// The command has a terminal event; the stream does not just end.
		events := st.All()
		WantEnd(t, events[len(events)-1].GetEnded(), "stopped", byUser)
		if again := b.Stop(); !proto.Equal(first, again) {
			t.Errorf("again: %v, first %v", again, first)
		}
		_, err := s.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
		WantCode(t, err, connect.CodeFailedPrecondition, "ended at 2", "stopped by request")
		for what, err := range map[string]error{
			"pause":  second(s.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID})),
			"extend": second(s.Sandboxes.ExtendSandbox(b.Ctx, &dsecv1.ExtendSandboxRequest{SandboxId: b.ID, TtlSeconds: proto.Float64(5)})),
			"stat":   second(s.Files.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/"})),
			"stats":  second(s.Sandboxes.GetSandboxStats(b.Ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.ID})),
		} {
			if code(err) != connect.CodeFailedPrecondition {
				t.Errorf("%s on an ended sandbox: %v", what, err)
			}
		}
		// Plain HTTP says as much.
		if status, answer := b.Do("GET", "files?path=/etc/hostname", strings.NewReader("")); status != 412 ||
			!strings.Contains(answer, `"kind":"stopped"`) || !strings.Contains(answer, `"blame":"BLAME_USER"`) {
			t.Errorf("read a file of an ended sandbox: %d %s", status, answer)
		}
		// Its record can still be read.
		if text, _ := Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: "c1"}).All(), 0); text != "on\n" {
			t.Errorf("output after the end: %q", text)
		}
	})
	t.Run("TTL", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(0.3)})
		if got := b.AwaitEnd(); got.End.Kind != "ttl_expired" || got.End.Blame != dsecv1.Blame_BLAME_POLICY || got.ExpiresAt != nil {
			t.Errorf("ended: %v", got)
		}
	})
	t.Run("TTLIsExtended", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(3600)})
		_, err := s.Sandboxes.ExtendSandbox(b.Ctx, &dsecv1.ExtendSandboxRequest{SandboxId: b.ID, TtlSeconds: proto.Float64(0.2)})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.AwaitEnd(); got.End.Kind != "ttl_expired" {
			t.Errorf("ended: %v", got)
		}
	})
	t.Run("Idle", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{IdleTimeoutSeconds: proto.Float64(0.3)})
		// A running command holds it.
		b.WantShell("sleep 0.9; echo still here", "still here\n")
		if got := b.AwaitEnd(); got.End.Kind != "idle_expired" || got.End.Blame != dsecv1.Blame_BLAME_POLICY {
			t.Errorf("ended: %v", got)
		}
	})
	t.Run("InitKilled", func(t *testing.T) {
		if s.Factory.KillInit == nil {
			t.Skip("the factory cannot kill")
		}
		b := s.Create(t, nil)
		neighbour := s.Create(t, nil)
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "echo on; sleep 600"}})
		st.Until("on")
		killed := time.Now()
		s.Factory.KillInit(t, s.Backend, idOf(b))
		events := st.All()
		WantEnd(t, events[len(events)-1].GetEnded(), "init_killed", byTask)
		if got := b.AwaitEnd(); got.End.Kind != "init_killed" || got.End.Blame != byTask {
			t.Errorf("ended: %v", got)
		}
		t.Logf("reported after %v", time.Since(killed))
		neighbour.WantShell("echo unharmed", "unharmed\n")
	})
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }
