package edge_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func ids(results []*dsecv1.CreateResult) string {
	s := ""
	for _, r := range results {
		s += r.GetSandbox().GetId() + r.GetError().GetCode() + " "
	}
	return s
}

func TestOneKeyMakesOneCreation(t *testing.T) {
	n := sandboxtest.Start(t, factoryOf(fake.Options{CreateTime: 20 * time.Millisecond}), nil)
	var wg sync.WaitGroup
	got := make([]string, 10)
	for i := range got {
		wg.Go(func() {
			r, err := ask(n, 3, "key", nil)
			if err != nil {
				t.Error(err)
			}
			got[i] = ids(r)
		})
	}
	wg.Wait()
	for _, g := range got {
		if g != got[0] {
			t.Errorf("one got %s, another %s", got[0], g)
		}
	}
	if machines(n) != 3 {
		t.Errorf("%d machines", machines(n))
	}
	n.Restart()
	r, err := ask(n, 3, "key", nil)
	if err != nil || ids(r) != got[0] {
		t.Errorf("after a restart %s, %v; before %s", ids(r), err, got[0])
	}
	_, err = ask(n, 2, "key", nil)
	sandboxtest.WantCode(t, err, connect.CodeAlreadyExists, "another body")
}

func TestARetryMakesOnlyWhatFailed(t *testing.T) {
	var calls atomic.Int32
	n := sandboxtest.Start(t, factoryOf(fake.Options{Fail: func(*sandbox.Spec) error {
		if calls.Add(1) == 2 {
			return sandbox.NewFailure(sandbox.KindStoreFault, "the store did not answer")
		}
		return nil
	}}), func(c *edge.Config) { c.Parallel = 1 })
	first, err := ask(n, 3, "key", nil)
	if err != nil || first[1].Error == nil || first[0].Sandbox == nil || first[2].Sandbox == nil {
		t.Fatalf("%v, %v", first, err)
	}
	again, err := ask(n, 3, "key", nil)
	if err != nil || again[1].Sandbox == nil || again[0].Sandbox.Id != first[0].Sandbox.Id || again[2].Sandbox.Id != first[2].Sandbox.Id {
		t.Errorf("%v, %v", again, err)
	}
	if calls.Load() != 4 {
		t.Errorf("%d creations", calls.Load())
	}
}

func TestKeysOutliveTheirSandboxes(t *testing.T) {
	var skew atomic.Int64
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) {
		c.Retention = time.Millisecond
		c.Clock.Wall = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	})
	first, err := ask(n, 1, "key", nil)
	if err != nil {
		t.Fatal(err)
	}
	id := first[0].Sandbox.Id
	if _, err := n.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	sandboxtest.Eventually(t, "it is forgotten", func() bool {
		_, err := n.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
		return connect.CodeOf(err) == connect.CodeNotFound
	})
	for range 2 { // in the same process, and after a restart
		r, err := ask(n, 1, "key", nil)
		if err != nil || r[0].Error.GetCode() != "not_found" {
			t.Errorf("%v, %v", r, err)
		}
		_, err = ask(n, 1, "key", &dsecv1.SandboxSpec{Labels: map[string]string{"a": "b"}})
		sandboxtest.WantCode(t, err, connect.CodeAlreadyExists)
		n.Restart()
	}
	skew.Store(int64(25 * time.Hour))
	n.Restart()
	r, err := ask(n, 1, "key", nil)
	if err != nil || r[0].Sandbox.GetId() == "" || r[0].Sandbox.Id == id {
		t.Errorf("a day later: %v, %v", r, err)
	}
}
