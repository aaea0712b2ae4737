package test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/testkit"
)

// machines makes a specification one of a microVM.
func machines(s *dsecv1.SandboxSpec) { s.Backend = dsecv1.Backend_BACKEND_MICROVM }

// TestMachinesKilled kills the edge at steps of making microVMs, of their snapshots and forks, and of a template. What runs
// goes on, who asked gets an answer, and nothing half-made is left.
func TestMachinesKilled(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots many machines: DSEC_TEST_SLOW=1")
	}
	n := startNode(t, "--opt", "microvm=on", "--opt", "microvm-warm=0", "--opt", testkit.KernelOpt())
	id := n.create(1, machines)[0]
	n.must(id, "mkfifo /go; (read x < /go; echo $x > /went) >/dev/null 2>&1 & echo 1 > /f")
	stop := func(ctx context.Context, id string) {
		t.Helper()
		if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
			t.Error(err)
		}
	}
	killed := func(point string, work func(*testing.T, context.Context)) {
		t.Run(point, func(t *testing.T) {
			n.crash()
			t.Setenv(failpoint.EnvVar, point+"=kill@2")
			n.up()
			edge := n.processes()["edge"]
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			work(t, ctx)
			if n.processes()["edge"] == edge {
				t.Error("the edge was not killed")
			}
			if got := n.must(id, "cat /f"); got != "1\n" {
				t.Errorf("the first machine: %q", got)
			}
			if left := n.snapshots(); len(left) != 0 {
				t.Errorf("snapshots are left: %v", left)
			}
			if got := n.list(running); len(got) != 1 {
				t.Errorf("running: %v", got)
			}
		})
	}
	for _, point := range []string{"microvm/recorded", "microvm/started", "microvm/claimed"} {
		killed(point, func(t *testing.T, ctx context.Context) {
			for range 2 {
				s := spec()
				machines(s)
				boxes, err := n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: s})
				if err != nil {
					t.Fatalf("create: %v", err)
				}
				n.must(boxes[0].Id, "true")
				stop(ctx, boxes[0].Id)
			}
		})
	}
	for _, point := range []string{"snapshot.recorded", "microvm/snapshot_frozen", "microvm/snapshot_taken", "microvm/restored"} {
		killed(point, func(t *testing.T, ctx context.Context) {
			for range 2 {
				made, err := n.Client.Fork(ctx, &dsecv1.ForkSandboxRequest{SandboxId: id})
				if err != nil {
					t.Fatalf("fork: %v", err)
				}
				if got := n.must(made[0].Id, "cat /f; echo copy > /go; until [ -s /went ]; do sleep 0.1; done; cat /went"); got != "1\ncopy\n" {
					t.Errorf("a copy: %q", got)
				}
				stop(ctx, made[0].Id)
			}
		})
	}
	n.crash()
	n.args = append(n.args, "--opt", "microvm-warm=1")
	t.Setenv(failpoint.EnvVar, "microvm/template_saved=kill")
	n.up()
	edge := n.processes()["edge"]
	other := n.create(1, machines)[0] // behind whose back a template is made
	eventually(t, "the edge is killed with a template", func() bool { return n.processes()["edge"] != edge })
	n.crash()
	t.Setenv(failpoint.EnvVar, "")
	n.up()
	for _, id := range []string{id, other} {
		n.must(id, "echo here")
	}
	if got := n.must(id, "echo original > /go; until [ -s /went ]; do sleep 0.1; done; cat /went"); got != "original\n" {
		t.Errorf("what ran in the first machine says %q", got)
	}
	n.stopAll()
	for _, pattern := range []string{"vm-templates/*.new", "vm-snapshots/*"} {
		if left, err := filepath.Glob(filepath.Join(n.state, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}
