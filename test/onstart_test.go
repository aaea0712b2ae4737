package test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// hookedToolkit publishes a toolkit that has script run in each new sandbox.
func (n *node) hookedToolkit(name, script string) {
	n.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "opt/" + name, Typeflag: tar.TypeDir, Mode: 0o755}), w.Close()); err != nil {
		n.t.Fatal(err)
	}
	up := client.Upload{Kind: "toolkit", Name: name, OnStart: &dsecv1.OnStart{Argv: []string{"/bin/sh", "-c", script}}}
	if _, err := n.Client.UploadLayer(n.t.Context(), up, &b, nil); err != nil {
		n.t.Fatal(err)
	}
}

// TestOnStartOutlivesTheEdge kills the edge while a toolkit's command runs. The next edge waits for it, runs those that had not
// begun, once each, and only then is the sandbox made, for who asks again with the same key; one that fails ends it.
func TestOnStartOutlivesTheEdge(t *testing.T) {
	n := startNode(t)
	n.hookedToolkit("slow", "echo slow >>/log; until [ -e /go ]; do sleep 0.05; done")
	n.hookedToolkit("next", "echo next >>/log")
	n.hookedToolkit("bad", "echo why >&2; exit 3")
	// begin asks for a sandbox, kills the edge while the first command runs, lets that go on, and returns what came of it.
	begin := func(key string, toolkits ...string) (*dsecv1.CreateSandboxResponse, error) {
		t.Helper()
		type answer struct {
			r   *dsecv1.CreateSandboxResponse
			err error
		}
		done := make(chan answer, 1)
		req := &dsecv1.CreateSandboxRequest{IdempotencyKey: key, Spec: spec()}
		req.Spec.Environment.Toolkits, req.Spec.Labels = toolkits, map[string]string{"key": key}
		ask := func() {
			for {
				r, err := n.Client.Sandboxes.CreateSandbox(context.WithoutCancel(t.Context()), req)
				if connect.CodeOf(err) != connect.CodeUnavailable || t.Context().Err() != nil {
					done <- answer{r, err}
					return
				}
			}
		}
		go ask()
		var id string
		eventually(t, "the first command runs", func() bool {
			list, err := n.Client.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{Labels: map[string]string{"key": key}})
			if err != nil || len(list.GetSandboxes()) != 1 {
				return false
			}
			id = list.Sandboxes[0].Id
			r, err := n.exec(id, "cat /log")
			return err == nil && string(r.GetStdout()) == "slow\n"
		})
		n.kill9(n.processes()["edge"])
		eventually(t, "the next edge knows it", func() bool { _, err := n.exec(id, "true"); return err == nil })
		select {
		case a := <-done:
			t.Fatalf("it was made before its toolkits had started: %v", a)
		default:
		}
		n.must(id, "touch /go")
		a := <-done
		return a.r, a.err
	}
	r, err := begin("good", "slow", "next")
	if err != nil || len(r.GetResults()) != 1 || r.Results[0].GetError() != nil {
		t.Fatalf("%v, %v", r, err)
	}
	id := r.Results[0].GetSandbox().GetId()
	if got := n.must(id, "cat /log"); got != "slow\nnext\n" {
		t.Errorf("what was run: %q", got)
	}
	// A later restart runs nothing again.
	n.kill9(n.processes()["edge"])
	eventually(t, "it is there again", func() bool { _, err := n.exec(id, "true"); return err == nil })
	if got := n.must(id, "cat /log"); got != "slow\nnext\n" {
		t.Errorf("after another restart: %q", got)
	}

	r, err = begin("bad", "slow", "bad")
	if err != nil || len(r.GetResults()) != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	f := r.Results[0].GetError().GetFailure()
	if f.GetKind() != "exited" || f.GetBlame() != dsecv1.Blame_BLAME_TASK || !strings.Contains(f.GetMessage(), "on-start of toolkit bad failed") || !strings.Contains(f.GetEvidence(), "why") {
		t.Errorf("one that fails: %v", r)
	}
}
