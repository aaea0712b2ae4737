package test

import (
	"context"
	_ "embed"
	"os"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// exhaust is a program that takes all of one thing, named by its argument, says how much it got, and holds it for a
// while.
//
//go:embed testdata/exhaust.py
var exhaust string

// upload puts a program into a sandbox.
func (n *node) upload(id, path, text string) {
	n.t.Helper()
	if err := n.Client.WriteFile(n.t.Context(), id, path, client.WriteOptions{Mode: 0o755}, strings.NewReader(text)); err != nil {
		n.t.Fatal(err)
	}
}

// answers fails the test unless a sandbox runs a command within a bound that no harmed node would keep.
func (n *node) answers(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := n.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(), Command: &dsecv1.CommandSpec{Shell: "echo well"}})
	if err != nil || string(r.GetStdout()) != "well\n" {
		t.Errorf("a neighbour: %v, %v", r, err)
	}
}

// survived checks what must hold after an attack from inside id: it serves, or it has ended by its own doing.
func (n *node) survived(t *testing.T, id string) {
	t.Helper()
	r, err := n.exec(id, "echo well")
	if err == nil && string(r.GetStdout()) == "well\n" {
		return
	}
	if err == nil {
		if b := r.GetCommand().GetResult().GetEnd().GetBlame(); b != dsecv1.Blame_BLAME_TASK {
			t.Errorf("a command afterwards: %v", r.GetCommand().GetResult())
		}
		return
	}
	got, gerr := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
	if gerr != nil || got.GetSandbox().GetEnd().GetBlame() != dsecv1.Blame_BLAME_TASK {
		t.Errorf("a command afterwards: %v; the sandbox: %v, %v", err, got.GetSandbox(), gerr)
	}
}

// slow tests run too when DSEC_TEST_SLOW is set, as by make test-all.
var slow = os.Getenv("DSEC_TEST_SLOW") != ""

// run executes argv with a timeout.
func (n *node) run(t *testing.T, id string, timeout time.Duration, argv ...string) *dsecv1.ExecResponse {
	t.Helper()
	s := timeout.Seconds()
	r, err := n.Client.Commands.Exec(t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: argv, TimeoutSeconds: &s}})
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return r
}

// TestExhaustion: a sandbox takes all it can get of one resource after another. Its neighbour has what it needs
// while it does, and it serves afterwards.
func TestExhaustion(t *testing.T) {
	n := startNode(t)
	neighbour := n.create(1, nil)[0]
	n.upload(neighbour, "/need.py", exhaust)
	for _, c := range []struct {
		what  string
		ends  []string // kinds in which the greedy command may end
		needs string   // what the neighbour must get meanwhile, in the words of the program
		slow  bool     // only where there is time: the kernel bounds it well, or it is like another
	}{
		{"inotify", []string{"exited"}, "inotify", false},
		{"ptys", []string{"exited"}, "ptys", false},
		{"tcp", []string{"exited"}, "tcp", false},
		{"udp", []string{"exited", "oom_killed"}, "tcp", true},
		{"unix", []string{"exited", "oom_killed"}, "tcp", true},
		{"signals", []string{"exited", "oom_killed"}, "timers", false},
		{"timers", []string{"exited", "oom_killed"}, "timers", true},
		{"mqueue", []string{"exited", "oom_killed"}, "mqueue", true},
		{"semaphores", []string{"exited", "oom_killed"}, "semaphores", true},
		{"sysvshm", []string{"exited", "oom_killed", "signalled"}, "", false},
		{"pipes", []string{"exited", "oom_killed"}, "pipes", true},
		{"files", []string{"exited"}, "files", false},
		{"epoll", []string{"exited", "oom_killed"}, "epoll", true},
		{"shm", []string{"exited", "disk_full", "oom_killed"}, "shm", true},
		{"memory", []string{"oom_killed", "exited"}, "", false},
		{"mlock", []string{"oom_killed", "exited"}, "", true},
		{"processes", []string{"exited", "timed_out"}, "processes", false},
		{"forkbomb", []string{"exited", "timed_out"}, "processes", false},
		{"threads", []string{"exited", "oom_killed"}, "processes", true},
		{"disk", []string{"exited", "disk_full"}, "disk", false},
		{"inodes", []string{"exited", "disk_full", "timed_out"}, "disk", false},
		{"deep", []string{"exited", "disk_full"}, "disk", false},
		{"locks", []string{"exited", "oom_killed"}, "", true},
		{"cpu", []string{"exited", "timed_out"}, "processes", true},
	} {
		if c.slow && !slow {
			continue
		}
		t.Run(c.what, func(t *testing.T) {
			id := n.create(1, nil)[0]
			n.upload(id, "/exhaust.py", exhaust)
			timeout, hold := 8.0, "1"
			if slow {
				timeout, hold = 60, "20"
			}
			cmd, err := n.Client.Start(t.Context(), id, &dsecv1.CommandSpec{Argv: []string{"python3", "/exhaust.py", c.what, hold}, TimeoutSeconds: &timeout})
			if err != nil {
				t.Fatal(err)
			}
			// It says when it has all it can get, or ends.
			var said strings.Builder
			full, done := make(chan struct{}), make(chan *dsecv1.Command, 1)
			go func() {
				end, err := n.Client.Attach(t.Context(), id, cmd.GetId(), 0, func(o *dsecv1.Output) error {
					if said.Len() < 4096 {
						said.Write(o.GetData())
					}
					if full != nil && strings.Contains(said.String(), "has ") {
						close(full)
						full = nil
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				done <- end
			}()
			var end *dsecv1.Command
			wait := full
			select {
			case <-wait:
			case end = <-done:
			}
			n.answers(t, neighbour)
			if c.needs != "" {
				if r := n.run(t, neighbour, 20*time.Second, "python3", "/need.py", "need", c.needs); r.GetCommand().GetResult().GetExitCode() != 0 {
					t.Errorf("the neighbour does not get its %s: %s%s", c.needs, r.GetStdout(), r.GetStderr())
				}
			}
			if end == nil {
				end = <-done
			}
			kind := end.GetResult().GetEnd().GetKind()
			ok := false
			for _, k := range c.ends {
				ok = ok || k == kind
			}
			if !ok || end.GetResult().GetEnd().GetBlame() != dsecv1.Blame_BLAME_TASK {
				t.Errorf("ended as %v", end.GetResult())
			}
			t.Logf("%s; %s (%d)", strings.TrimSpace(said.String()), kind, end.GetResult().GetExitCode())
			n.survived(t, id)
			if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}
