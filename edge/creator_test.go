package edge_test

import (
	"context"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestCreatorLeaves: who asks for several without a key and goes away while they are made leaves none of them, those
// that were ready included.
func TestCreatorLeaves(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.Parallel = 1 })
	if err := failpoint.Set("create.before_ready=wait=1s@3"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = failpoint.Set("") }()
	req := n.Request(nil)
	req.Create.Count = 3
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error, 1)
	go func() {
		_, err := n.Creator.CreateResolved(ctx, req)
		left <- err
	}()
	list := func(s dsecv1.SandboxState) []*dsecv1.Sandbox {
		r, err := n.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{s}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Sandboxes
	}
	sandboxtest.Eventually(t, "two are ready", func() bool { return len(list(dsecv1.SandboxState_SANDBOX_STATE_RUNNING)) == 2 })
	cancel()
	if err := <-left; err == nil {
		t.Fatal("the request was answered")
	}
	sandboxtest.Eventually(t, "all have ended", func() bool { return len(list(dsecv1.SandboxState_SANDBOX_STATE_STOPPED)) >= 2 && machines(n) == 0 })
	for _, s := range list(dsecv1.SandboxState_SANDBOX_STATE_STOPPED) {
		if s.End.Kind != "stopped" || !strings.Contains(s.End.Message, "went away") {
			t.Errorf("end %v", s.End)
		}
	}
	if r := list(dsecv1.SandboxState_SANDBOX_STATE_RUNNING); len(r) != 0 {
		t.Errorf("still running: %v", r)
	}
}
