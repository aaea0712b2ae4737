package edge_test

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestUnknownCommand: whatever is asked about a command that is not there, the answer names the command and its sandbox,
// and says that it is the command that is missing.
func TestUnknownCommand(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, nil)
	ask := map[string]func(id string) error{
		"get": func(id string) error {
			_, err := n.Commands.GetCommand(b.Ctx, &dsecv1.GetCommandRequest{SandboxId: b.ID, CommandId: id})
			return err
		},
		"attach": func(id string) error {
			s, err := n.Commands.AttachCommand(b.Ctx, &dsecv1.AttachCommandRequest{SandboxId: b.ID, CommandId: id})
			if err != nil {
				return err
			}
			defer s.Close()
			for s.Receive() {
			}
			return s.Err()
		},
		"signal": func(id string) error {
			_, err := n.Commands.SignalCommand(b.Ctx, &dsecv1.SignalCommandRequest{SandboxId: b.ID, CommandId: id})
			return err
		},
		"input": func(id string) error {
			_, err := n.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id})
			return err
		},
	}
	check := func(id, says string) {
		t.Helper()
		for what, fn := range ask {
			err := fn(id)
			sandboxtest.WantCode(t, err, connect.CodeNotFound, "sandbox "+b.ID, id, says)
			var ce *connect.Error
			if !errors.As(err, &ce) || len(ce.Details()) != 1 {
				t.Errorf("%s %s: no detail in %v", what, id, err)
				continue
			}
			v, verr := ce.Details()[0].Value()
			if d, ok := v.(*dsecv1.Error); verr != nil || !ok || d.Code != "no_such_command" {
				t.Errorf("%s %s: detail %v, %v", what, id, v, verr)
			}
		}
	}
	check("c7", "none was started yet")
	b.Shell("true")
	check("c7", "the last one is c1")
	check("nonsense", "ids are c1")
}
