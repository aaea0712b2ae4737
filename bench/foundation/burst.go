package main

import (
	"context"
	"fmt"
)

// burst measures creations that are all asked for at the same instant, each up to its first command's result, as a job
// that starts does. A burst begins when what the one before left behind is gone and the pool is full again; the
// floor and the peers have nothing to rest from.
func (b *bench) burst(ctx context.Context) error {
	if err := b.node.settle(ctx); err != nil {
		return err
	}
	none := func(context.Context) error { return nil }
	for _, size := range []int{8, 32} {
		name := func(what string) string { return fmt.Sprintf("%s_burst_%d", what, size) }
		floor := b.bursts(ctx, name("fork_exec"), size, hostExec, none)
		ours := b.bursts(ctx, name("create"), size, b.node.createAndRun(b.node.bases[:1]), b.node.settle)
		runc := b.bursts(ctx, name("runc_run"), size, b.peer.runcRun, none)
		ctr := b.bursts(ctx, name("ctr_run"), size, b.peer.ctrRun, none)
		b.ratio(ours.Name, floor, runc, ctr)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
