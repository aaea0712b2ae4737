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

func rollouts(ctx context.Context, o options, c *client.Client) ([]result, error) {
	p := newProgress(o.n)
	terminal, every := term.IsTerminal(int(os.Stderr.Fd())), printEvery
	if terminal {
		every = redrawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	quit, shown := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(shown)
		p.show(os.Stderr, terminal, tick.C, quit)
	}()
	results := make([]result, o.n)
	var wg sync.WaitGroup
	for i := range results {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := &results[i]
			r.Seed = o.seed + int64(i)
			start := time.Now()
			at := p.begin()
			if err := rollout(ctx, c, r, at); err != nil {
				r.Why = err.Error()
			} else {
				r.OK, r.Why = true, "mended"
			}
			at.end(r.OK)
			r.Seconds = time.Since(start).Seconds()
		}()
	}
	wg.Wait()
	close(quit)
	<-shown
	return results, ctx.Err()
}

func rollout(ctx context.Context, c *client.Client, r *result, at *tracker) error {
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
	at.next()
	if _, err := b.exec(ctx, 0, "python3", agentDir+"/agent.py", "break", "--seed", fmt.Sprint(r.Seed), projectDir); err != nil {
		return fmt.Errorf("break the project: %w", err)
	}
	at.next()
	suite := []string{"python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "toolz"}
	if _, err := b.exec(ctx, 1, suite...); err != nil {
		return fmt.Errorf("first run of the suite, which must fail: %w", err)
	}
	at.next()
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
	at.next()
	if err := b.edit(ctx, a.Edit); err != nil {
		return fmt.Errorf("edit: %w", err)
	}
	at.next()
	if _, err := b.exec(ctx, 0, suite...); err != nil {
		return fmt.Errorf("second run of the suite, which must pass: %w", err)
	}
	st, err := c.Sandboxes.GetSandboxStats(ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: id})
	if err != nil {
		return fmt.Errorf("statistics: %w", err)
	}
	r.Memory = st.GetStats().GetMemoryPeakBytes()
	_, err = c.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}
