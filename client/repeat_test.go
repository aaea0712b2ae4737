package client

import (
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// TestRepeatable: a change of rules without a condition may be asked for twice; with one, its own first effect would
// refuse the second.
func TestRepeatable(t *testing.T) {
	if !repeatable(connect.NewRequest(&dsecv1.SetNetworkRequest{SandboxId: "a"})) {
		t.Error("rules without a condition")
	}
	if repeatable(connect.NewRequest(&dsecv1.SetNetworkRequest{SandboxId: "a", IfGeneration: 3})) {
		t.Error("rules on top of a generation")
	}
	for what, safe := range map[connect.AnyRequest]bool{
		connect.NewRequest(&dsecv1.TakeScreenshotRequest{SandboxId: "a"}): true, connect.NewRequest(&dsecv1.MovePointerRequest{SandboxId: "a"}): true,
		connect.NewRequest(&dsecv1.ClickPointerRequest{SandboxId: "a"}): false, connect.NewRequest(&dsecv1.TypeTextRequest{SandboxId: "a"}): false,
	} {
		if repeatable(what) != safe {
			t.Errorf("%T: want repeatable %v", what.Any(), safe)
		}
	}
	if repeatable(connect.NewRequest(&dsecv1.ExecRequest{SandboxId: "a"})) {
		t.Error("a command without an operation id")
	}
}
