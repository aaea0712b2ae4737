package edge_test

import (
	"context"
	"errors"
	"fmt"
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

// ask creates sandboxes and returns results and error.
func ask(n *sandboxtest.Node, count int32, key string, spec *dsecv1.SandboxSpec) ([]*dsecv1.CreateResult, error) {
	req := n.Request(spec)
	req.Create.Count, req.Create.IdempotencyKey = count, key
	resp, err := n.Creator.CreateResolved(context.Background(), req)
	if err != nil {
		return nil, err
	}
	return resp.Response.Results, nil
}

func machines(n *sandboxtest.Node) int { return len(n.Backend.(*fake.Backend).Machines()) }

func TestNoRoomIsRefusedBeforeAnythingIsMade(t *testing.T) {
	var made atomic.Int32
	opt := fake.Options{Fail: func(*sandbox.Spec) error { made.Add(1); return nil }}
	t.Run("Memory", func(t *testing.T) {
		n := sandboxtest.Start(t, factoryOf(opt), func(c *edge.Config) {
			c.MinFreeMemory, c.ReserveMemory = 1<<30, 64<<20
			c.Clock.AvailableMemory = func() (int64, error) { return 1<<30 + 100<<20, nil }
		})
		if _, err := ask(n, 1, "", nil); err != nil {
			t.Errorf("one has room: %v", err)
		}
		before := made.Load()
		_, err := ask(n, 2, "", nil)
		sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "memory", "1024 MiB")
		if made.Load() != before {
			t.Error("something was made")
		}
	})
	t.Run("Count", func(t *testing.T) {
		n := sandboxtest.Start(t, factoryOf(opt), func(c *edge.Config) { c.MaxSandboxes = 3 })
		first, err := ask(n, 3, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ask(n, 1, "", nil)
		sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "at most 3")
		if _, err := n.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: first[0].Sandbox.Id}); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(n, 1, "", nil); err != nil {
			t.Errorf("after one was stopped: %v", err)
		}
	})
	t.Run("Waiting", func(t *testing.T) {
		reached, gate := make(chan struct{}, 4), make(chan struct{})
		n := sandboxtest.Start(t, factoryOf(fake.Options{Fail: func(*sandbox.Spec) error {
			reached <- struct{}{}
			<-gate
			return nil
		}}), func(c *edge.Config) {
			c.MaxWaiting, c.Parallel = 4, 2
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if r, err := ask(n, 4, "", nil); err != nil || len(r) != 4 || r[3].Error != nil {
				t.Errorf("%v, %v", r, err)
			}
		})
		<-reached // all four were admitted
		_, err := ask(n, 1, "", nil)
		sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "at most 4 may")
		close(gate)
		wg.Wait()
	})
	t.Run("Backend", func(t *testing.T) {
		full := fmt.Errorf("pool of writable layers: %w", sandbox.ErrExhausted)
		n := sandboxtest.Start(t, factoryOf(fake.Options{Fail: func(*sandbox.Spec) error { return full }}), nil)
		r, err := ask(n, 1, "", nil)
		if err != nil || r[0].Error.GetCode() != "resource_exhausted" {
			t.Errorf("%v, %v", r, err)
		}
		wantNothing(t, n)
	})
}

// wantNothing checks that no sandbox is known and no machine is left.
func wantNothing(t *testing.T, n *sandboxtest.Node) {
	t.Helper()
	list, err := n.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{})
	if err != nil || len(list.Sandboxes) != 0 || machines(n) != 0 {
		t.Errorf("sandboxes %v, %v; machines %d", list, err, machines(n))
	}
}

func TestCreationDeadline(t *testing.T) {
	n := sandboxtest.Start(t, factoryOf(fake.Options{CreateTime: time.Hour}), nil)
	r, err := ask(n, 3, "", &dsecv1.SandboxSpec{CreateTimeoutSeconds: proto.Float64(0.1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r {
		if x.Error.GetCode() != "deadline_exceeded" || x.Error.GetFailure().GetKind() != "create_deadline" {
			t.Errorf("result %v", x)
		}
	}
	wantNothing(t, n)
}

func TestFailedCreations(t *testing.T) {
	var calls atomic.Int32
	n := sandboxtest.Start(t, factoryOf(fake.Options{Fail: func(*sandbox.Spec) error {
		switch calls.Add(1) {
		case 2:
			return sandbox.NewFailure(sandbox.KindImageUnavailable, "no such layer")
		case 3:
			return errors.New("something odd")
		}
		return nil
	}}), func(c *edge.Config) { c.Parallel = 1 })
	r, err := ask(n, 4, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r[0].Sandbox == nil || r[3].Sandbox == nil || r[1].Error.GetFailure().GetKind() != "image_unavailable" || r[2].Error.GetFailure().GetKind() != "internal" {
		t.Errorf("results %v", r)
	}
	list, err := n.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_STOPPED}})
	if err != nil || len(list.Sandboxes) != 2 {
		t.Errorf("failed ones: %v, %v", list, err)
	}
}

func TestCreatorGoesAway(t *testing.T) {
	reached := make(chan struct{}, 1)
	n := sandboxtest.Start(t, factoryOf(fake.Options{CreateTime: time.Hour, Fail: func(*sandbox.Spec) error {
		reached <- struct{}{}
		return nil
	}}), nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = n.Creator.CreateResolved(ctx, n.Request(nil)) })
	<-reached
	cancel()
	wg.Wait()
	// Nobody knows its id: it must not live on.
	sandboxtest.Eventually(t, "nothing is left", func() bool {
		node, err := n.Nodes.GetNode(context.Background(), &dsecv1.GetNodeRequest{})
		return err == nil && node.LiveSandboxes == 0 && machines(n) == 0
	})
}
