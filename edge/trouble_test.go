package edge_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
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

// flaky fails the named operations while they are set.
type flaky struct {
	mu    sync.Mutex
	fails map[string]int // how often yet
}

func (f *flaky) set(op string, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails == nil {
		f.fails = map[string]int{}
	}
	f.fails[op] = times
}

func (f *flaky) hook(op string, _ sandbox.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails[op] > 0 {
		f.fails[op]--
		return errors.New("device or resource busy")
	}
	return nil
}

func TestNothingGetsStuck(t *testing.T) {
	f := &flaky{}
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: f.hook}), nil)
	b := n.Create(t, nil)
	pause := func() error {
		_, err := n.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID})
		return err
	}
	f.set("pause", 1)
	if err := pause(); err == nil || b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
		t.Errorf("a freeze that failed: %v, %v", err, b.Get())
	}
	b.WantShell("echo runs", "runs\n") // it was rolled back
	if err := pause(); err != nil {
		t.Fatal(err)
	}
	f.set("resume", 1)
	_, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
	if err == nil || b.Get().State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("a thaw that failed: %v, %v", err, b.Get())
	}
	b.WantShell("echo again", "again\n") // the next request tries again
	f.set("destroy", 1)
	b.Stop() // tried until it works
	if machines(n) != 0 {
		t.Error("its machine is left")
	}
}

func TestChannelIsOpenedAgain(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, nil)
	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "count 100 0.005"}})
	st.Until("5\n")
	// Someone with a greater epoch takes the channel away; the machine lives.
	m := n.Backend.(*fake.Backend).Machine(sandbox.ID(b.ID))
	c, err := m.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events := st.All()
	if end := events[len(events)-1].GetEnded(); end.GetResult().GetExitCode() != 0 || end.Result.OutputBytes != 292 || end.Result.OutputCutBytes != 0 {
		t.Errorf("end %v", end)
	}
	b.WantShell("echo on", "on\n")
}

func TestBoundsOfOneSandbox(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) {
		c.MaxCommands, c.MaxSessions, c.MaxQueue = 20, 2, 3
	})
	b := n.Create(t, nil)
	session := b.Session()
	b.Session()
	_, err := n.Commands.CreateSession(b.Ctx, &dsecv1.CreateSessionRequest{SandboxId: b.ID})
	sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "at most 2")
	var streams []*sandboxtest.Stream
	for range 4 { // one runs, three wait
		streams = append(streams, b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "sleep 600", SessionId: session}}))
	}
	_, err = n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true", SessionId: session}})
	sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "at most 3")
	for range 16 {
		b.Detach(&dsecv1.CommandSpec{Shell: "sleep 600"})
	}
	_, err = n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
	sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "at most 20")
	b.Stop()
	for _, st := range streams { // each has its end
		events := st.All()
		if end := events[len(events)-1].GetEnded(); end.GetResult().GetEnd() == nil {
			t.Errorf("events %v", events)
		}
	}
}

func TestManyShortCommands(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.Record.Keep, c.Record.Total = 100, 96<<10 })
	b := n.Create(t, nil)
	for range 10 {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { b.WantShell("echo some output of a short command", "some output of a short command\n") })
		}
		wg.Wait()
	}
	check := func() {
		t.Helper()
		list, err := n.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID, PageSize: 1000})
		if err != nil || len(list.Commands) != 100 || list.ForgottenCommands != 900 || list.Commands[99].Order != 1000 {
			t.Errorf("%d commands, %d forgotten, %v", len(list.GetCommands()), list.GetForgottenCommands(), err)
		}
		_, err = n.Commands.GetCommand(b.Ctx, &dsecv1.GetCommandRequest{SandboxId: b.ID, CommandId: "c1"})
		sandboxtest.WantCode(t, err, connect.CodeNotFound, "only the last 100")
	}
	check()
	n.Restart()
	check()
	if r := b.Shell("true"); r.Command.Order != 1001 {
		t.Errorf("order %d", r.Command.Order)
	}
	types := []string{}
	for _, ev := range b.Events(0) {
		types = append(types, ev.Type)
	}
	if types[0] != "created" || !slices.Contains(types, "compacted") {
		t.Errorf("events %v", types[:3])
	}
}

func TestClocksOfTheNode(t *testing.T) {
	var boot, wall atomic.Int64
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) {
		c.Clock.Boot = func() time.Duration { return time.Hour + time.Duration(boot.Load()) }
		c.Clock.Wall = func() time.Time { return time.Unix(2_000_000_000, wall.Load()) }
	})
	b := n.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(100)})
	for _, set := range []time.Duration{-24 * time.Hour, 24 * time.Hour} { // the wall clock is set
		wall.Store(int64(set))
		got := b.Get()
		if left := got.ExpiresAt.AsTime().Sub(time.Unix(2_000_000_000, int64(set))); got.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING || left != 100*time.Second {
			t.Errorf("wall clock at %v: %v left, %v", set, left, got)
		}
	}
	boot.Store(int64(40 * time.Second))
	if _, err := n.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	boot.Store(int64(4000 * time.Second)) // paused time does not count, across a restart neither
	n.Restart()
	if _, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	if left := b.Get().ExpiresAt.AsTime().Sub(time.Unix(2_000_000_000, wall.Load())); left != 60*time.Second {
		t.Errorf("%v left after the pause", left)
	}
	boot.Store(int64(4060 * time.Second))
	_, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
	sandboxtest.WantCode(t, err, connect.CodeFailedPrecondition, "ttl_expired")
}

func TestRetention(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.RetainMax = 3 })
	var ended []string
	for range 5 {
		b := n.Create(t, nil)
		b.Stop()
		ended = append(ended, b.ID)
	}
	sandboxtest.Eventually(t, "the oldest are forgotten", func() bool {
		list, err := n.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_STOPPED}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range list.Sandboxes {
			got = append([]string{s.Id}, got...)
		}
		return slices.Equal(got, ended[2:])
	})
}

// TestSlowClient: a client that does not read holds up neither the command nor others, and costs no memory.
func TestSlowClient(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, nil)
	slow := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "count 2000000; echo last"}})
	id := slow.Next().GetStarted().GetId() // and reads no more for now
	events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All()
	end := events[len(events)-1].GetEnded().GetResult()
	if end.GetExitCode() != 0 || end.OutputCutBytes == 0 {
		t.Errorf("end %v", end)
	}
	rest := slow.All() // the slow one finds the tail, and knows what was cut
	text, cut := sandboxtest.Text(rest, 0)
	if !strings.HasSuffix(text, "last\n") || int64(len(text))+cut != end.OutputBytes || cut == 0 {
		t.Errorf("the slow client got %d bytes and %d cut of %d", len(text), cut, end.OutputBytes)
	}
}

func TestStagesAreShown(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	n.Create(t, nil).Shell("true")
	node, err := n.Nodes.GetNode(t.Context(), &dsecv1.GetNodeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"create.backend", "create.record", "create.total", "create.wait", "command.start"} {
		if !slices.ContainsFunc(node.Stages, func(c *dsecv1.StageCost) bool { return c.Stage == want && c.Count == 1 }) {
			t.Errorf("no stage %s in %v", want, fmt.Sprint(node.Stages))
		}
	}
}

// TestGroupCommit: with the disk waited for, all is as without.
func TestGroupCommit(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.Record.Sync = true })
	b := n.Create(t, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { b.WantShell("count 3", "1\n2\n3\n") })
	}
	wg.Wait()
	b.WantShell("count 300000; echo last", string(b.Shell("count 300000; echo last").Stdout))
	n.Restart()
	list, err := n.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID})
	if err != nil || len(list.Commands) != 52 || list.Commands[51].Result == nil {
		t.Errorf("%d commands, %v", len(list.GetCommands()), err)
	}
}

// TestIdleSandboxesAreCheap shows what an idle sandbox costs the edge; the fake's share is in it.
func TestIdleSandboxesAreCheap(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	usage := func() (heap uint64, goroutines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse, runtime.NumGoroutine()
	}
	must(ask(n, 1, "", nil))
	heap, goroutines := usage()
	const count = 500
	results := must(ask(n, count, "", nil))
	after, more := usage()
	if results[count-1].Error != nil {
		t.Fatal(results[count-1])
	}
	bytes, perBox := (after-heap)/count, float64(more-goroutines)/count
	t.Logf("%d bytes and %.2f goroutines for each", bytes, perBox)
	// The channel's reader here, and the machine's in the fake.
	if perBox > 2.1 {
		t.Errorf("%.2f goroutines for each idle sandbox", perBox)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
