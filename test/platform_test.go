package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/failpoint"
)

// list returns the sandboxes in a state.
func (n *node) list(s dsecv1.SandboxState) []*dsecv1.Sandbox {
	n.t.Helper()
	r, err := n.Client.Sandboxes.ListSandboxes(n.t.Context(), &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{s}, PageSize: 1000})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.GetSandboxes()
}

const (
	running = dsecv1.SandboxState_SANDBOX_STATE_RUNNING
	stopped = dsecv1.SandboxState_SANDBOX_STATE_STOPPED
)

// parts are the names of all sandboxes and shells of which something exists on the machine.
func (n *node) parts() map[string]bool {
	n.t.Helper()
	ents, err := os.ReadDir(filepath.Join(n.state, "run", "shells"))
	if err != nil {
		n.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, e := range ents {
		out[e.Name()] = true
	}
	return out
}

// TestKilledAtFailpoints kills the edge of a whole node at steps of creations and commands, each in the middle of
// other work. The client asks again and gets its answer once; the work goes on; nothing is left half-made.
func TestKilledAtFailpoints(t *testing.T) {
	points := []string{
		"create.before_journal", "create.after_journal", "create.after_backend", "create.before_ready", "create.after_ready",
		"container/claim", "container/composed", "container/claimed",
		"command.after_journal", "command.after_start", "command.before_end", "command.before_release",
	}
	n := startNode(t)
	work := n.create(1, nil)[0] // lives through all of it
	count, err := n.Client.Start(t.Context(), work, &dsecv1.CommandSpec{Shell: "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"})
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			n.crash()
			t.Setenv(failpoint.EnvVar, point+"=kill@2") // the first time it passes, so that the next edge gets past it
			n.up()
			edge := n.processes()["edge"]
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var ids []string
			for range 2 {
				boxes, err := n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: spec()})
				if err != nil {
					t.Fatalf("create: %v", err)
				}
				ids = append(ids, boxes[0].GetId())
				// Twice in each, so that every point is passed more than once.
				for i := range 2 {
					id := boxes[0].GetId()
					r, err := n.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
						Command: &dsecv1.CommandSpec{Shell: "echo x >> /count; wc -l < /count"}})
					if want := fmt.Sprintln(i + 1); err != nil || string(r.GetStdout()) != want || r.GetCommand().GetResult().GetEnd().GetKind() != "exited" {
						t.Errorf("command %d: %v, %v", i, r, err)
					}
				}
			}
			for _, id := range ids {
				if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
					t.Errorf("stop: %v", err)
				}
			}
			if n.processes()["edge"] == edge {
				t.Error("the edge was not killed")
			}
			if got := n.list(running); len(got) != 1 {
				t.Errorf("running: %v", got)
			}
		})
	}
	n.crash()
	n.up()
	// The counter has never stopped, and not a line is lost.
	next := 0
	if _, err := n.Client.Commands.SignalCommand(t.Context(), &dsecv1.SignalCommandRequest{SandboxId: work, CommandId: count.GetId(), Signal: 9, Tree: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client.Attach(t.Context(), work, count.GetId(), 0, func(o *dsecv1.Output) error {
		for line := range strings.Lines(string(o.GetData())) {
			if o.GetCutBytes() != 0 || line != fmt.Sprintln(next) {
				return fmt.Errorf("line %q after %d", line, next)
			}
			next++
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%d lines", next)
	// Only it and shells that are ready, or being made, exist.
	eventually(t, "nothing half-made is left", func() bool { return len(n.parts()) <= 1+8 && n.parts()[work] })
}

// TestHoldKilled: what keeps descriptors across the edge's death dies, alone and with the edge.
func TestHoldKilled(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	n.must(id, "echo kept > /kept")
	for _, victims := range [][]string{{"hold"}, {"hold", "edge"}, {"edge"}} {
		p := n.processes()
		for _, v := range victims {
			if p[v] == 0 {
				t.Fatalf("no %s among %v", v, p)
			}
			n.kill9(p[v])
		}
		for _, v := range victims {
			eventually(t, v+" is back", func() bool { now := n.processes()[v]; return now != 0 && now != p[v] })
		}
		if out := n.must(id, "cat /kept"); out != "kept\n" {
			t.Errorf("after the death of %v: %q", victims, out)
		}
		other := n.create(1, nil)[0]
		n.must(other, "python3 -c 'print(1)'")
		if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: other}); err != nil {
			t.Error(err)
		}
	}
}

// TestDamagedRecords: records of sandboxes are damaged while nobody watches, and garbage lies where state is kept.
// The node starts, sandboxes whose record is damaged end and say why, all others go on.
func TestDamagedRecords(t *testing.T) {
	n := startNode(t)
	damage := map[string]func(path string) error{
		"garbled":   func(p string) error { return garble(p) },
		"emptied":   func(p string) error { return os.Truncate(p, 0) },
		"removed":   func(p string) error { return os.Remove(p) },
		"truncated": func(p string) error { return os.Truncate(p, 20) },
	}
	ids := map[string]string{}
	for what := range damage {
		ids[what] = n.create(1, nil)[0]
		n.must(ids[what], "echo some output")
	}
	well := n.create(2, nil)
	cmd, err := n.Client.Start(t.Context(), well[0], &dsecv1.CommandSpec{Shell: "echo one; sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	n.crash()
	for what, f := range damage {
		if err := f(filepath.Join(n.state, "edge", "sandboxes", ids[what], "journal")); err != nil {
			t.Fatal(err)
		}
	}
	garbage := []byte("\x00\xff garbage \n{")
	for _, p := range []string{
		"edge/sandboxes/garbage", "edge/sandboxes/new-XYZ/journal", "edge/sandboxes/" + strings.Repeat("x", 20) + "/journal",
		"run/garbage", "run/shells/garbage/record.json", "run/shells/" + well[1][:5] + "aaaaaaaaaaaaaaa/record.json", "edge/keys", "edge/keys.new",
	} {
		full := filepath.Join(n.state, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, garbage, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.up()
	for _, id := range well {
		n.must(id, "true")
	}
	if c, err := n.Client.Commands.GetCommand(t.Context(), &dsecv1.GetCommandRequest{SandboxId: well[0], CommandId: cmd.GetId()}); err != nil || c.GetCommand().GetResult() != nil {
		t.Errorf("the command: %v, %v", c, err)
	}
	parts := n.parts()
	for what, id := range ids {
		r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
		if err != nil || r.GetSandbox().GetState() != stopped || r.GetSandbox().GetEnd().GetBlame() != dsecv1.Blame_BLAME_INFRA {
			t.Errorf("%s: %v, %v", what, r.GetSandbox(), err)
		} else {
			t.Logf("%s: %v", what, r.GetSandbox().GetEnd())
		}
		if parts[id] {
			t.Errorf("%s: its machine is left", what)
		}
		if _, err := n.exec(id, "true"); connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("%s: a command: %v", what, err)
		}
	}
	// Again: what was mended stays mended.
	n.crash()
	n.up()
	n.must(well[0], "true")
	for what, id := range ids {
		if r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil || r.GetSandbox().GetState() != stopped {
			t.Errorf("%s: %v, %v", what, r.GetSandbox(), err)
		}
	}
	// Garbage that is nobody's is not touched; it must not count as a leftover of this node.
	for _, p := range []string{"run/shells/garbage"} {
		if err := os.RemoveAll(filepath.Join(n.state, p)); err != nil {
			t.Error(err)
		}
	}
}

// garble changes bytes all over a file.
func garble(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i := 40; i < len(b); i += 97 {
		b[i] ^= 0xa5
	}
	return os.WriteFile(path, b, 0o600)
}
