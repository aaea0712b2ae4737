package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// result is one rollout.
type result struct {
	Seed    int64           `json:"seed"`
	OK      bool            `json:"ok"`
	Why     string          `json:"why"`
	Edit    string          `json:"edit,omitempty"`
	Trials  int             `json:"trials"`
	Create  time.Duration   `json:"createNs"`
	Execs   []time.Duration `json:"execNs"` // round trips of a program that does nothing
	Memory  int64           `json:"memoryPeakBytes"`
	Seconds float64         `json:"seconds"`
}

// edit is what the agent proposes.
type edit struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Old    string `json:"old"`
	New    string `json:"new"`
}

type answer struct {
	Status  string   `json:"status"`
	Edit    *edit    `json:"edit"`
	Trials  int      `json:"trials"`
	Failing []string `json:"failing"`
}

// stages of a rollout, for the progress display.
var stages = []string{"create", "break", "test", "solve", "edit", "test again"}

func rollouts(ctx context.Context, o options, c *client.Client) ([]result, error) {
	bar, tick, wait := display(o.n)
	defer wait()
	_ = bar
	results := make([]result, o.n)
	var wg sync.WaitGroup
	for i := range results {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := &results[i]
			r.Seed = o.seed + int64(i)
			start := time.Now()
			if err := rollout(ctx, c, r, tick); err != nil {
				r.Why = err.Error()
			} else {
				r.OK, r.Why = true, "mended"
			}
			r.Seconds = time.Since(start).Seconds()
		}()
	}
	wg.Wait()
	return results, ctx.Err()
}

// display shows a bar over all stages of all rollouts on a terminal, and nothing elsewhere.
func display(n int) (bar *mpb.Bar, tick func(stage int), wait func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprintf(os.Stderr, "%d rollouts at once\n", n)
		return nil, func(int) {}, func() {}
	}
	p := mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
	var mu sync.Mutex
	at := make([]int, len(stages))
	bar = p.AddBar(int64(n*len(stages)),
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("%d rollouts at once ", n))),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			mu.Lock()
			defer mu.Unlock()
			s := ""
			for i, name := range stages {
				s += fmt.Sprintf(" %s %d", name, at[i])
			}
			return s
		})))
	tick = func(stage int) {
		mu.Lock()
		at[stage]++
		mu.Unlock()
		bar.Increment()
	}
	return bar, tick, func() { bar.Abort(false); p.Wait() }
}

func rollout(ctx context.Context, c *client.Client, r *result, tick func(int)) error {
	ttl := longest.Seconds() // it ends with the demo
	start := time.Now()
	boxes, err := c.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: baseName, Workspace: workspaceName, Toolkits: []string{toolkitName}},
		Limits:      &dsecv1.Limits{MemoryBytes: 512 << 20, CpuMillis: 2000, Pids: 256, DiskBytes: 256 << 20},
		Labels:      map[string]string{"job": "demo"},
		TtlSeconds:  &ttl,
	}})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	r.Create = time.Since(start)
	id := boxes[0].GetId()
	defer func() {
		_, _ = c.Sandboxes.StopSandbox(context.WithoutCancel(ctx), &dsecv1.StopSandboxRequest{SandboxId: id})
	}()
	b := &box{c: c, id: id}
	for range 3 {
		t := time.Now()
		if err := b.quick(ctx, "true"); err != nil {
			return err
		}
		r.Execs = append(r.Execs, time.Since(t))
	}
	tick(0)
	if _, err := b.exec(ctx, 0, "python3", agentDir+"/agent.py", "break", "--seed", fmt.Sprint(r.Seed), projectDir); err != nil {
		return fmt.Errorf("break the project: %w", err)
	}
	tick(1)
	suite := []string{"python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "toolz"}
	if _, err := b.exec(ctx, 1, suite...); err != nil {
		return fmt.Errorf("first run of the suite, which must fail: %w", err)
	}
	tick(2)
	out, err := b.exec(ctx, 0, "python3", agentDir+"/agent.py", "solve", projectDir)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil || a.Edit == nil {
		return fmt.Errorf("agent said %.200q", out)
	}
	r.Trials = a.Trials
	r.Edit = fmt.Sprintf("%s:%d %q -> %q", a.Edit.File, a.Edit.Line, a.Edit.Old, a.Edit.New)
	tick(3)
	if err := b.edit(ctx, a.Edit); err != nil {
		return fmt.Errorf("edit: %w", err)
	}
	tick(4)
	if _, err := b.exec(ctx, 0, suite...); err != nil {
		return fmt.Errorf("second run of the suite, which must pass: %w", err)
	}
	tick(5)
	st, err := c.Sandboxes.GetSandboxStats(ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: id})
	if err != nil {
		return fmt.Errorf("statistics: %w", err)
	}
	r.Memory = st.GetStats().GetMemoryPeakBytes()
	_, err = c.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}
