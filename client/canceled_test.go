package client_test

import (
	"context"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// TestCanceledByAnother: "canceled" is an answer only to who canceled.
func TestCanceledByAnother(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	undo := c.CancelOnce()
	if _, err := c.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	undo()
	got, err := c.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
	if err != nil || got.GetSandbox().GetState() != dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Fatalf("after it was stopped: %v, %v", got.GetSandbox().GetState(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: id}); err == nil {
		t.Fatal("a canceled call was answered")
	}
}
