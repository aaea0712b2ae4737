package edge_test

import (
	"context"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// hooked asks for a sandbox whose toolkits want something to be run first.
func hooked(t *testing.T, n *sandboxtest.Node, hooks ...*dsecv1.OnStart) *dsecv1.CreateResult {
	t.Helper()
	req := n.Request(nil)
	req.Layers = nil
	for k, h := range hooks {
		req.Layers = append(req.Layers, &dsecv1.ResolvedLayer{Digest: "b3:" + strings.Repeat(string(rune('0'+k)), 64), Kind: "toolkit", Name: "agent", OnStart: h})
	}
	resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Response.Results[0]
}

// Toolkits' commands run before anybody else's, in the order of the stack, and are recorded as commands are.
func TestOnStart(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	sh := func(script string) *dsecv1.OnStart { return &dsecv1.OnStart{Argv: []string{"sh", "-c", script}} }
	r := hooked(t, n, sh("echo one"), nil, sh("echo two"))
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	list, err := n.Commands.ListCommands(sandboxtest.Context(t), &dsecv1.ListCommandsRequest{SandboxId: r.Sandbox.Id})
	if err != nil || len(list.Commands) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, c := range list.Commands {
		if c.Spec.Tag != "on-start" || c.Result.GetExitCode() != 0 {
			t.Errorf("%v", c)
		}
	}

	r = hooked(t, n, sh("echo why >&2; exit 3"), sh("echo never"))
	f := r.GetError().GetFailure()
	if f.GetKind() != "exited" || f.GetBlame() != dsecv1.Blame_BLAME_TASK || !strings.Contains(f.GetMessage(), "on-start of toolkit agent failed: it exited with 3") || !strings.Contains(f.GetEvidence(), "why") {
		t.Errorf("a command that fails: %v", r)
	}
	r = hooked(t, n, &dsecv1.OnStart{Argv: []string{"/no/such/program"}})
	if f := r.GetError().GetFailure(); f.GetBlame() == dsecv1.Blame_BLAME_INFRA || f.GetKind() == "" {
		t.Errorf("a program that is not there: %v", r)
	}
	r = hooked(t, n, &dsecv1.OnStart{Argv: []string{"sleep", "60"}, TimeoutSeconds: 0.1})
	if f := r.GetError().GetFailure(); f.GetKind() != "timed_out" || f.GetBlame() != dsecv1.Blame_BLAME_TASK {
		t.Errorf("a command that does not end: %v", r)
	}
	if live := machines(n); live != 1 {
		t.Errorf("%d sandboxes are left of four creations, of which three failed", live)
	}
	req := n.Request(nil)
	req.Layers = []*dsecv1.ResolvedLayer{{Digest: "b3:0", Kind: "toolkit", OnStart: &dsecv1.OnStart{}}}
	if _, err := n.Creator.CreateResolved(context.Background(), req); err == nil || !strings.Contains(err.Error(), "argv") {
		t.Errorf("a command without a program: %v", err)
	}
}

// What a named environment says of limits holds where the request says nothing.
func TestDefaultLimits(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	req := n.Request(&dsecv1.SandboxSpec{Limits: &dsecv1.Limits{Pids: 33}})
	req.DefaultLimits = &dsecv1.Limits{MemoryBytes: 200 << 20, Pids: 44}
	resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), req)
	if err != nil {
		t.Fatal(err)
	}
	if l := resp.Response.Results[0].GetSandbox().GetSpec().GetLimits(); l.GetMemoryBytes() != 200<<20 || l.GetPids() != 33 {
		t.Errorf("%v", resp)
	}
}
