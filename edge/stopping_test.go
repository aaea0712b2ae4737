package edge_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestReadWhileStopping: what a sandbox's commands said and how they ended is readable while it is stopping, as it is
// once it has stopped, and whoever follows one is told its end.
func TestReadWhileStopping(t *testing.T) {
	var stuck atomic.Bool
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: func(op string, _ sandbox.ID) error {
		if op == "destroy" && stuck.Load() {
			return errors.New("device or resource busy")
		}
		return nil
	}}), nil)
	b := n.Create(t, nil)
	ran, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, OperationId: "first", Command: &dsecv1.CommandSpec{Shell: "echo ran; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	runs := b.Start(&dsecv1.StartCommandRequest{OperationId: "second", Command: &dsecv1.CommandSpec{Shell: "echo begun; sleep 600"}})
	id := runs.Next().GetStarted().GetId()
	runs.Until("begun\n")

	stuck.Store(true)
	defer stuck.Store(false)
	stopped := make(chan error, 1)
	go func() {
		_, err := n.Sandboxes.StopSandbox(b.Ctx, &dsecv1.StopSandboxRequest{SandboxId: b.ID})
		stopped <- err
	}()
	sandboxtest.Eventually(t, "it is stopping", func() bool { return b.Get().State == dsecv1.SandboxState_SANDBOX_STATE_STOPPING })

	events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: ran.Command.Id}).All()
	if text, _ := sandboxtest.Text(events, 0); text != "ran\n" || events[len(events)-1].GetEnded().GetResult().GetExitCode() != 3 {
		t.Errorf("the ended one: %v", events)
	}
	if text, _ := sandboxtest.Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: id, NoFollow: true}).All(), 0); text != "begun\n" {
		t.Errorf("the record of the running one: %q", text)
	}
	list, err := n.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID})
	if err != nil || len(list.Commands) != 2 || b.Command(id).Id != id {
		t.Errorf("list %v, %v", list, err)
	}
	replay := func(when string) {
		t.Helper()
		again, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, OperationId: "first", Command: &dsecv1.CommandSpec{Shell: "echo ran; exit 3"}})
		if err != nil || string(again.Stdout) != "ran\n" || again.Command.Result.ExitCode != 3 {
			t.Errorf("%s, the same operation again: %v, %v", when, again, err)
		}
		_, err = n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, OperationId: "third", Command: &dsecv1.CommandSpec{Shell: "true"}})
		sandboxtest.WantCode(t, err, connect.CodeFailedPrecondition, "stopped")
	}
	replay("while it is stopping")
	follow := b.Attach(&dsecv1.AttachCommandRequest{CommandId: id})
	if got, _ := follow.Until("begun\n"); got != "begun\n" {
		t.Errorf("followed: %q", got)
	}
	repeated := b.Start(&dsecv1.StartCommandRequest{OperationId: "second", Command: &dsecv1.CommandSpec{Shell: "echo begun; sleep 600"}})
	if got := repeated.Next().GetStarted().GetId(); got != id {
		t.Errorf("the same operation again is command %q", got)
	}

	stuck.Store(false)
	for name, s := range map[string]*sandboxtest.Stream{"started": runs, "attached": follow, "repeated": repeated} {
		events := s.All()
		if len(events) == 0 {
			t.Errorf("%s: the stream has no end", name)
			continue
		}
		sandboxtest.WantEnd(t, events[len(events)-1].GetEnded(), "stopped", dsecv1.Blame_BLAME_USER)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	events = b.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All()
	if text, _ := sandboxtest.Text(events, 0); text != "begun\n" || events[len(events)-1].GetEnded() == nil {
		t.Errorf("once it is stopped: %v", events)
	}
	replay("once it is stopped")
}
