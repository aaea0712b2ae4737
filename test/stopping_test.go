package test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/failpoint"
)

// TestLogsWhileStopping: the command line reads what a sandbox's commands said while the sandbox is stopping, and who
// follows one is told how it ended.
func TestLogsWhileStopping(t *testing.T) {
	t.Setenv(failpoint.EnvVar, "container/killed=wait=6s@1") // the first removal takes a while: this sandbox's
	n := startNode(t)
	cfg := n.config()
	t.Setenv("DSEC_URL", cfg.URL)
	t.Setenv("DSEC_API_KEY", cfg.Key)
	id := n.create(1, nil)[0]
	cmd, err := n.Client.Start(t.Context(), id, &dsecv1.CommandSpec{Shell: "echo begun; exec sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has begun", func() bool {
		text, err := n.Run(t.Context(), "logs", id, cmd.GetId())
		return err == nil && text == "begun\n"
	})
	stopped := make(chan error, 1)
	go func() {
		_, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id})
		stopped <- err
	}()
	state := func() dsecv1.SandboxState {
		r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetSandbox().GetState()
	}
	eventually(t, "it is stopping", func() bool { return state() != dsecv1.SandboxState_SANDBOX_STATE_RUNNING })
	follow := func(when string) {
		t.Helper()
		text, err := n.Run(t.Context(), "logs", "-f", id, cmd.GetId())
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 137 || text != "begun\n" || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("%s: %q, %v", when, text, err)
		}
	}
	if text, err := n.Run(t.Context(), "logs", id); err != nil || !strings.Contains(text, "echo begun") {
		t.Errorf("the list while it is stopping: %q, %v", text, err)
	}
	if text, err := n.Run(t.Context(), "logs", id, cmd.GetId()); err != nil || text != "begun\n" {
		t.Errorf("the record while it is stopping: %q, %v", text, err)
	}
	if s := state(); s != dsecv1.SandboxState_SANDBOX_STATE_STOPPING {
		t.Logf("it is %v already: this machine is too slow to show it", s)
	}
	follow("while it is stopping")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	follow("once it has stopped")
}
