package edge_test

import (
	"slices"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// quantiles reports what each call took.
func quantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkExec is what API, record and channel add to a command that takes no time.
func BenchmarkExec(b *testing.B) {
	n := sandboxtest.Start(b, fakeFactory(), nil)
	box := n.Create(b, nil)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := n.Commands.Exec(b.Context(), &dsecv1.ExecRequest{SandboxId: box.ID, Command: &dsecv1.CommandSpec{Argv: []string{"echo", "x"}}}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(b, took)
}

// BenchmarkGet is the floor of a call: the same way without a command.
func BenchmarkGet(b *testing.B) {
	n := sandboxtest.Start(b, fakeFactory(), nil)
	box := n.Create(b, nil)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := n.Sandboxes.GetSandbox(b.Context(), &dsecv1.GetSandboxRequest{SandboxId: box.ID}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(b, took)
}

// BenchmarkLife is create, one command, stop: the edge's own share.
func BenchmarkLife(b *testing.B) {
	n := sandboxtest.Start(b, fakeFactory(), nil)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		r, err := n.Creator.CreateResolved(b.Context(), n.Request(nil))
		if err != nil {
			b.Fatal(err)
		}
		id := r.Response.Results[0].Sandbox.Id
		if _, err := n.Commands.Exec(b.Context(), &dsecv1.ExecRequest{SandboxId: id, Command: &dsecv1.CommandSpec{Argv: []string{"true"}}}); err != nil {
			b.Fatal(err)
		}
		if _, err := n.Sandboxes.StopSandbox(b.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	quantiles(b, took)
}
