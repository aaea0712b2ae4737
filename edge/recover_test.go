package edge_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestCountersThroughRestarts has many sandboxes print numbers while the edge is replaced again and again:
// each line is in the record once, and the client that attaches again sees each once.
func TestCountersThroughRestarts(t *testing.T) {
	const boxes, lines = 100, 300
	n := sandboxtest.Start(t, fakeFactory(), nil)
	var want strings.Builder
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	list := make([]*sandboxtest.Box, boxes)
	commands := make([]string, boxes)
	for i := range list {
		list[i] = n.Create(t, nil)
		commands[i] = list[i].Detach(&dsecv1.CommandSpec{Shell: fmt.Sprintf("count %d 0.005", lines)}).Id
	}
	seen := make([]string, boxes)
	follow := func(i int) {
		at := list[i].Attach(&dsecv1.AttachCommandRequest{CommandId: commands[i], FromOffset: int64(len(seen[i]))})
		defer at.Close()
		for ev := at.Next(); ev != nil; ev = at.Next() {
			if o := ev.GetOutput(); o != nil {
				if o.CutBytes != 0 || o.Offset != int64(len(seen[i])) {
					t.Errorf("box %d: piece at %d after %d", i, o.Offset, len(seen[i]))
				}
				seen[i] += string(o.Data)
			}
		}
	}
	for range 6 {
		var wg sync.WaitGroup
		for i := range list {
			wg.Go(func() { follow(i) })
		}
		// Go on once the first has some more.
		time.Sleep(100 * time.Millisecond) // the instant is arbitrary on purpose
		n.Stop()                           // streams end with an error, never with a made-up end
		wg.Wait()
		n.Restart()
	}
	for i, b := range list {
		follow(i)
		if seen[i] != want.String() {
			t.Fatalf("box %d: the client saw %d bytes, want %d", i, len(seen[i]), want.Len())
		}
		events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: commands[i]}).All()
		if text, cut := sandboxtest.Text(events, 0); text != want.String() || cut != 0 {
			t.Fatalf("box %d: the record holds %d bytes, %d cut", i, len(text), cut)
		}
		if b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
			t.Errorf("box %d: %v", i, b.Get())
		}
	}
}

// TestWhatEndedWhileNobodyWatched: commands, sessions and machines that end while no edge is there.
func TestWhatEndedWhileNobodyWatched(t *testing.T) {
	var skew atomic.Int64
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) {
		c.Clock.Boot = func() time.Duration { return time.Since(start) + time.Duration(skew.Load()) }
	})
	done := n.Create(t, nil)
	c := done.Detach(&dsecv1.CommandSpec{Shell: "count 50 0.002; exit 9"})
	gone := n.Create(t, nil)
	lost := gone.Detach(&dsecv1.CommandSpec{Shell: "sleep 600"})
	due := n.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(100)})
	idle := n.Create(t, &dsecv1.SandboxSpec{IdleTimeoutSeconds: proto.Float64(50)})
	n.Stop()
	world := n.Backend.(*fake.Backend)
	if err := world.Machine(sandbox.ID(gone.ID)).Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // the counter ends; nobody can be asked
	skew.Store(int64(101 * time.Second))
	n.Restart()
	events := done.Attach(&dsecv1.AttachCommandRequest{CommandId: c.Id}).All()
	if end := events[len(events)-1].GetEnded(); end.GetResult().GetExitCode() != 9 {
		t.Errorf("end %v", end)
	}
	if got := gone.Get(); got.End.GetKind() != "node_lost" || got.End.Blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("gone: %v", got)
	}
	sandboxtest.WantEnd(t, gone.Command(lost.Id), "node_lost", dsecv1.Blame_BLAME_INFRA)
	if got := due.AwaitEnd(); got.End.Kind != "ttl_expired" {
		t.Errorf("due: %v", got)
	}
	// Nobody could use it meanwhile: idleness starts anew.
	if got := idle.Get(); got.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
		t.Errorf("idle: %v", got)
	}
}

// TestTimeRanOutWhileNobodyWatched: a sandbox that is to be paused when its time runs out is, by the edge that comes back;
// and how long it may stay so is counted while there is no edge.
func TestTimeRanOutWhileNobodyWatched(t *testing.T) {
	var skew atomic.Int64
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) {
		c.Clock.Boot = func() time.Duration { return time.Since(start) + time.Duration(skew.Load()) }
	})
	spec := &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(100), OnTimeout: dsecv1.OnTimeout_ON_TIMEOUT_PAUSE, PausedSeconds: proto.Float64(3600)}
	b := n.Create(t, spec)
	c := b.Detach(&dsecv1.CommandSpec{Shell: "sleep 600"})
	later := func(d time.Duration) {
		n.Stop()
		skew.Add(int64(d))
		n.Restart()
	}
	later(101 * time.Second)
	b.AwaitState(dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
	later(3000 * time.Second)
	if got := b.Get(); got.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED || got.PausedUntil == nil {
		t.Errorf("an hour is not over: %v", got)
	}
	if b.Command(c.Id).Result != nil {
		t.Error("its command ended")
	}
	resp, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
	if err != nil || time.Until(resp.GetSandbox().GetExpiresAt().AsTime()) < 50*time.Second {
		t.Errorf("resumed: %v, %v", resp, err)
	}
	later(101 * time.Second)
	b.AwaitState(dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
	later(3601 * time.Second)
	if got := b.AwaitEnd(); got.End.Kind != "ttl_expired" {
		t.Errorf("due: %v", got)
	}
}

var start = time.Now()

func TestNodeRestarted(t *testing.T) {
	boot := "one"
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.Clock.BootID = boot })
	b := n.Create(t, nil)
	c := b.Detach(&dsecv1.CommandSpec{Shell: "sleep 600"})
	boot = "two"
	n.Restart()
	if got := b.Get(); got.End.GetKind() != "node_restarted" || got.End.Blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("after a reboot: %v", got)
	}
	sandboxtest.WantEnd(t, b.Command(c.Id), "node_restarted", dsecv1.Blame_BLAME_INFRA)
	if machines(n) != 0 {
		t.Error("its machine is left")
	}
}

// TestUnknownIsNotEmpty: a machine that cannot be looked at is neither ended nor swept.
func TestUnknownIsNotEmpty(t *testing.T) {
	var broken atomic.Bool
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: func(op string, _ sandbox.ID) error {
		if op == "recover" && broken.Load() {
			return errors.New("input/output error")
		}
		return nil
	}}), nil)
	b := n.Create(t, nil)
	broken.Store(true)
	n.Restart()
	if got := b.Get(); got.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING || machines(n) != 1 {
		t.Errorf("while it cannot be looked at: %v, %d machines", got, machines(n))
	}
	_, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
	sandboxtest.WantCode(t, err, connect.CodeUnavailable, "try again")
	broken.Store(false)
	sandboxtest.Eventually(t, "it is reached", func() bool {
		_, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
		return err == nil
	})
}

// TestOrphansAreSwept: machines that no record knows are removed at the start.
func TestOrphansAreSwept(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, nil)
	if _, err := n.Backend.Create(t.Context(), &sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	n.Restart()
	if machines(n) != 1 || b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
		t.Errorf("%d machines, %v", machines(n), b.Get())
	}
}
