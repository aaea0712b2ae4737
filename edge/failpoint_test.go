package edge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

const (
	childState = "DSEC_TEST_EDGE_STATE"
	childID    = "DSEC_TEST_EDGE_ID"
)

// TestMain runs an edge that is going to be killed when the environment asks for it.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childState); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child makes one sandbox and runs one command in it; a failpoint ends it somewhere on the way.
func child(dir string) error {
	ctx := context.Background()
	id := sandbox.EdgeID(os.Getenv(childID))
	world := fake.New(fake.Options{Edge: id})
	e, err := edge.New(edge.Config{ID: id, StateDir: dir, MinFreeMemory: 1}, map[sandbox.BackendName]sandbox.Backend{sandbox.BackendFake: world}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := e.Recover(ctx); err != nil {
		return err
	}
	srv := httptest.NewServer(e.Handler())
	r, err := dsecv1connect.NewEdgeServiceClient(srv.Client(), srv.URL).CreateResolved(ctx, &dsecv1.CreateResolvedRequest{
		Create: &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{}, IdempotencyKey: "key"}, KeyId: "test",
	})
	if err != nil || r.Response.Results[0].Error != nil {
		return fmt.Errorf("create: %v, %v", r, err)
	}
	_, err = dsecv1connect.NewCommandServiceClient(srv.Client(), srv.URL).Exec(ctx, &dsecv1.ExecRequest{
		SandboxId: r.Response.Results[0].Sandbox.Id, Command: &dsecv1.CommandSpec{Shell: "echo on; sleep 600"},
	})
	return err
}

// TestKilledAtEachStep kills an edge at each step of a creation and of a command's start. The machines of the
// fake die with it; what the next edge makes of the record is what counts.
func TestKilledAtEachStep(t *testing.T) {
	for _, c := range []struct {
		point string
		kind  string // of the sandbox that is listed as ended; "" = none is
		made  bool   // it was ready, so the key stands for it
	}{
		{"create.before_journal", "", false},
		{"create.after_journal", "internal", false},
		{"create.after_backend", "internal", false},
		{"create.before_ready", "internal", false},
		{"create.after_ready", "node_lost", true},
		{"command.after_journal", "node_lost", true},
		{"command.after_start", "node_lost", true},
	} {
		t.Run(c.point, func(t *testing.T) {
			n := sandboxtest.Start(t, fakeFactory(), nil)
			n.Stop()
			dir := filepath.Join(n.State, "edge")
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childState+"="+dir, childID+"="+string(n.ID), failpoint.EnvVar+"="+c.point+"=kill")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("child: %v\n%s", err, out)
			}
			n.Restart()
			list, err := n.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_STOPPED}})
			if err != nil {
				t.Fatal(err)
			}
			var kinds, id string
			for _, s := range list.Sandboxes {
				kinds, id = kinds+s.End.Kind, s.Id
				if s.End.Blame != dsecv1.Blame_BLAME_INFRA {
					t.Errorf("end %v", s.End)
				}
			}
			if kinds != c.kind {
				t.Errorf("ended sandboxes %q, want %q", kinds, c.kind)
			}
			wantNothing(t, n)
			if strings.HasPrefix(c.point, "command.") {
				got, err := n.Commands.GetCommand(t.Context(), &dsecv1.GetCommandRequest{SandboxId: id, CommandId: "c1"})
				if err != nil {
					t.Fatal(err)
				}
				sandboxtest.WantEnd(t, got.Command, "node_lost", dsecv1.Blame_BLAME_INFRA)
			}
			r, err := ask(n, 1, "key", nil)
			if err != nil || (r[0].Sandbox.GetId() == id) != c.made || r[0].Error != nil {
				t.Errorf("the same key again: %v, %v; the first was %s", r, err, id)
			}
			entries, _ := os.ReadDir(filepath.Join(dir, "sandboxes"))
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), "new-") {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}
}

// TestStepsThatFail: an error at a step leaves nothing behind.
func TestStepsThatFail(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	defer func() { _ = failpoint.Set("") }()
	for _, point := range []string{"create.before_journal", "create.after_journal", "create.after_backend", "create.before_ready", "create.after_ready"} {
		if err := failpoint.Set(point + "=error"); err != nil {
			t.Fatal(err)
		}
		r, err := ask(n, 1, "", nil)
		if err != nil || r[0].Error == nil {
			t.Errorf("%s: %v, %v", point, r, err)
		}
		wantNothing(t, n)
	}
	_ = failpoint.Set("")
	b := n.Create(t, nil)
	_ = failpoint.Set("command.after_journal=error")
	sandboxtest.WantEnd(t, b.Shell("true").Command, "internal", dsecv1.Blame_BLAME_INFRA)
	_ = failpoint.Set("")
	b.WantShell("echo goes on", "goes on\n")
}
