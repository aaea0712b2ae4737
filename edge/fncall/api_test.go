package fncall

import (
	"context"
	"errors"
	"math"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fncall"
	"github.com/opendsec/dsec/sandbox"
)

// TestBatchOnce: every item of a batch is sent once, and no more at once than ahead.
func TestBatchOnce(t *testing.T) {
	a := New(nil, nil)
	const n = 500
	seen := make([]int, n)
	err := a.batch(t.Context(), n, func(_ context.Context, _ caller, k int) func() error {
		return func() error { seen[k]++; return nil }
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, times := range seen {
		if times != 1 {
			t.Errorf("item %d was sent %d times", k, times)
		}
	}
	gone := errors.New("the client is gone")
	if err := a.batch(t.Context(), n, func(context.Context, caller, int) func() error { return func() error { return gone } }); !errors.Is(err, gone) {
		t.Errorf("a client that goes: %v", err)
	}
	for _, n := range []int{0, maxBatch + 1} {
		if err := a.batch(t.Context(), n, nil); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("a batch of %d: %v", n, err)
		}
	}
	for range maxBatches / 2 {
		if _, ok := a.batches.take("", 1); !ok {
			t.Fatal("half of all batches are not one project's")
		}
	}
	if err := a.batch(t.Context(), 1, nil); connect.CodeOf(wireError(err)) != connect.CodeResourceExhausted {
		t.Errorf("one batch too many: %v", err)
	}
}

// TestPatiently: items of a batch wait where single calls are refused.
func TestPatiently(t *testing.T) {
	tries := 0
	v, err := patiently(t.Context(), func() (int, error) {
		if tries++; tries < 3 {
			return 0, sandbox.ErrExhausted
		}
		return 7, nil
	})
	if v != 7 || err != nil || tries != 3 {
		t.Errorf("%d, %v after %d tries", v, err, tries)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := patiently(ctx, func() (int, error) { return 0, sandbox.ErrExhausted }); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait any more: %v", err)
	}
}

func TestHeld(t *testing.T) {
	a := New(nil, nil)
	r := &dsecv1.CallRequest{Call: &dsecv1.CallSpec{Stdin: make([]byte, 1<<20)}}
	release, err := a.hold(t.Context(), r)
	if err != nil || a.held.taken < 1<<20 {
		t.Fatalf("%d held, %v", a.held.taken, err)
	}
	release()
	if a.held.taken != 0 || len(a.held.of) != 0 {
		t.Errorf("still held: %+v", a.held)
	}
	if _, ok := a.held.take("", maxHeld/2); !ok {
		t.Fatal("half of all memory is not one project's")
	}
	_, err = a.hold(t.Context(), r)
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != connect.CodeResourceExhausted || ce.Meta().Get("Retry-After") == "" || a.held.taken != maxHeld/2 {
		t.Errorf("too much input: %v, %d held", err, a.held.taken)
	}
	// Others have the other half, and no more.
	if _, ok := a.held.take("other", maxHeld/2); !ok {
		t.Error("another project has nothing of its own")
	}
	if _, ok := a.held.take("third", 1); ok {
		t.Error("more was taken than there is")
	}
}

func TestLimits(t *testing.T) {
	for _, v := range []float64{-1, math.NaN(), math.Inf(1), 1e9} {
		if _, err := limits(&dsecv1.CallLimits{CpuSeconds: v}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%v s: %v", v, err)
		}
	}
	if _, err := submission(&dsecv1.JudgeRequest{Submission: &dsecv1.JudgeSpec{Comparison: 99}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("an unknown comparison: %v", err)
	}
	for v := range verdicts {
		if verdicts[v] == 0 {
			t.Errorf("verdict %s has no word on the wire", v)
		}
	}
	r := &fncall.Result{Failure: sandbox.NewFailure(sandbox.KindTimedOut, "x")}
	if exitCode(r) != 137 {
		t.Errorf("exit code %d of a call that was killed", exitCode(r))
	}
}
