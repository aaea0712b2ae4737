package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/opendsec/dsec/bench/measure"
)

// program is what every contender runs.
const program = "/bin/true"

func hostExec(ctx context.Context, _ int) error { return exec.CommandContext(ctx, program).Run() }

// create measures creation up to the first command's result at 1, 8 and 32 at once, each beside the floor and
// the peers at the same concurrency. What comes after the result (stopping) is not in the figure, but its work, and
// the refilling of the pool, run meanwhile and are paid by those that follow.
func (b *bench) create(ctx context.Context) error {
	for _, at := range []int{1, 8, 32} {
		suffix := map[int]string{1: "", 8: "_c8", 32: "_c32"}[at]
		n := max(b.o.n, 6*at)
		few := max(2*at, n/5) // the peers are slow
		floor := b.times(ctx, "fork_exec"+suffix, n, at, hostExec)
		ours := b.times(ctx, "create_first_result"+suffix, n, at, b.node.createAndRun(b.node.bases[:1]))
		b.ratio(ours.Name, floor)
		runc := b.times(ctx, "runc_run"+suffix, few, at, b.peer.runcRun)
		b.ratio(ours.Name, runc)
		bwrap := b.times(ctx, "bwrap"+suffix, few, at, b.peer.bwrap)
		b.ratio(ours.Name, bwrap)
		ctr := b.times(ctx, "ctr_run"+suffix, few, at, b.peer.ctrRun)
		b.ratio(ours.Name, ctr)
		if at == 1 {
			// Each creation uses an image that the node has not used before.
			distinct := b.times(ctx, "create_first_result_distinct", len(b.node.bases)-1, 1, b.node.createAndRun(b.node.bases[1:]))
			b.ratio(distinct.Name, floor, ours)
		}
		if err := b.node.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// exec measures a command in a running sandbox.
func (b *bench) exec(ctx context.Context) error {
	id, err := b.node.create(ctx, b.node.bases[0])
	if err != nil {
		return err
	}
	defer func() { _ = b.node.stopSandbox(context.WithoutCancel(ctx), id) }()
	stop, floorExec, err := httpExec()
	if err != nil {
		return err
	}
	defer stop()
	for _, at := range []int{1, 8} {
		suffix := map[int]string{1: "", 8: "_c8"}[at]
		floor := b.times(ctx, "http_fork_exec"+suffix, b.o.n, at, floorExec)
		ours := b.times(ctx, "exec_round_trip"+suffix, b.o.n, at, func(ctx context.Context, _ int) error { return b.node.exec(ctx, id) })
		runc := b.times(ctx, "runc_exec"+suffix, max(2*at, b.o.n/5), at, b.peer.runcExec)
		b.ratio(ours.Name, floor, runc)
	}
	// As agents do it: a command, and a pause in which nothing happens. What sleeps meanwhile has to wake up.
	rested := func(f func(context.Context, int) error) (times []time.Duration, failures int, first error) {
		for i := range max(10, b.o.n/5) {
			select {
			case <-time.After(rest):
			case <-ctx.Done():
				return times, failures, ctx.Err()
			}
			start := time.Now()
			if err := f(ctx, i); err != nil {
				failures, first = failures+1, err
				continue
			}
			times = append(times, time.Since(start))
		}
		return times, failures, first
	}
	floor := b.keep("http_fork_exec_after_pause")(rested(floorExec))
	ours := b.keep("exec_round_trip_after_pause")(rested(func(ctx context.Context, _ int) error { return b.node.exec(ctx, id) }))
	b.ratio(ours.Name, floor)
	return nil
}

// rest is a pause between commands.
const rest = 100 * time.Millisecond

// sustained measures how many lives (create, one command, stop) the node manages in a second, with the cost of
// each stage.
func (b *bench) sustained(ctx context.Context) error {
	if err := b.node.settle(ctx); err != nil {
		return err
	}
	const at = 8
	n := b.o.n * 2
	before, err := measure.MachineNow()
	if err != nil {
		return err
	}
	start := time.Now()
	_, failures, first := measure.Times(ctx, n, at, func(ctx context.Context, _ int) error {
		id, err := b.node.create(ctx, b.node.bases[0])
		if err != nil {
			return err
		}
		err = b.node.exec(ctx, id)
		if serr := b.node.stopSandbox(ctx, id); err == nil {
			err = serr
		}
		return err
	})
	r := measure.FromValues("create_sustained", "per second", []float64{float64(n-failures) / time.Since(start).Seconds()}, failures)
	if first != nil {
		r.Note = "first failure: " + first.Error()
	}
	b.rows = append(b.rows, r)
	// All of it: what was put off until later, too.
	if err := b.node.settle(ctx); err != nil {
		return err
	}
	after, err := measure.MachineNow()
	if err != nil {
		return err
	}
	life := measure.FromValues("life_cpu", "ms", []float64{(after.Busy - before.Busy) * 1000 / float64(n)}, failures)
	life.Note = "processors' time of the whole machine for each life, refilling, removal and the client included"
	b.rows = append(b.rows, life)
	stages, err := b.node.stages(ctx)
	if err != nil {
		return err
	}
	for _, s := range stages {
		b.rows = append(b.rows, measure.Row{Name: "stage_" + s.GetStage(), N: int(s.GetCount()), P50: s.GetP50Usec() / 1000,
			P99: s.GetP99Usec() / 1000, Unit: "ms", Note: "since the node's start"})
	}
	return nil
}

// idle measures what idle sandboxes cost at 100, 500 and 1,000 live.
func (b *bench) idle(ctx context.Context) error {
	if err := b.node.settle(ctx); err != nil {
		return err
	}
	before, err := usedMemory()
	if err != nil {
		return err
	}
	var ids []string
	for _, level := range []int{100, 500, 1000} {
		if level > b.o.idle {
			break
		}
		for len(ids) < level {
			got, err := b.node.createMany(ctx, b.node.bases[0], min(50, level-len(ids)))
			if err != nil {
				return err
			}
			ids = append(ids, got...)
		}
		if err := b.node.settle(ctx); err != nil {
			return err
		}
		after, err := usedMemory()
		if err != nil {
			return err
		}
		inits, err := b.node.initMemory()
		if err != nil {
			return err
		}
		each := float64(after-before) / float64(len(ids)) / (1 << 20)
		row := measure.FromValues(fmt.Sprintf("idle_memory_%d", level), "MiB each", []float64{each}, 0)
		row.N = len(ids)
		row.Note = fmt.Sprintf("of the whole machine's memory; dsec-init PSS %.2f MiB", inits)
		b.rows = append(b.rows, row)
	}
	start := time.Now()
	if err := b.node.stopAll(ctx); err != nil {
		return err
	}
	b.rows = append(b.rows, measure.FromDurations("stop_all", []time.Duration{time.Since(start)}, 0))
	return b.node.settle(ctx)
}
