package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

func init() { parts = append(parts, part{"pack", pack}, part{"fork", fork}) }

// withNode runs f on a node with the Debian base, called debian.
func (b *bench) withNode(ctx context.Context, f func(n *testkit.Node) error, opts ...string) (err error) {
	tar, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	state, err := os.MkdirTemp(b.work, "node-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	n, err := testkit.StartNode(ctx, b.dsec, state, opts...)
	if err != nil {
		return err
	}
	defer func() {
		left, serr := n.Stop()
		if len(left) > 0 {
			serr = errors.Join(serr, fmt.Errorf("left behind: %v", left))
		}
		err = errors.Join(err, serr)
	}()
	file, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := n.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "debian"}, file, nil); err != nil {
		return err
	}
	return f(n)
}

func create(ctx context.Context, n *testkit.Node, count int32, disk int64) ([]*dsecv1.Sandbox, error) {
	return n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: count, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: "debian"}, Limits: &dsecv1.Limits{DiskBytes: disk, MemoryBytes: 1 << 30}}})
}

func shell(ctx context.Context, n *testkit.Node, id, script string) error {
	r, err := n.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(), Command: &dsecv1.CommandSpec{Shell: script}})
	if err != nil {
		return err
	}
	if res := r.GetCommand().GetResult(); res.GetExitCode() != 0 {
		return fmt.Errorf("%s: exit code %d, %v: %s", script, res.GetExitCode(), res.GetEnd().GetMessage(), r.GetStderr())
	}
	return nil
}

// pack measures how long a sandbox is frozen by pack_diff, and what the whole of it takes.
func pack(ctx context.Context, b *bench) error {
	return b.withNode(ctx, func(n *testkit.Node) error {
		for _, c := range []struct {
			name, change string
			n            int
		}{
			// Each pack finds changes that were made just before it, in the page cache still.
			{"10", "for i in 0 1 2 3 4 5 6 7 8 9; do head -c 4000 /dev/urandom > /work/$i; done", b.n},
			{"1000", "i=0; while [ $i -lt 1000 ]; do echo $RANDOM$i > /work/$i; i=$((i+1)); done", max(b.n/2, 3)},
			{"1gb", "head -c 1G /dev/urandom > /work/big", max(b.n/10, 3)},
		} {
			made, err := create(ctx, n, 1, 5<<30)
			if err != nil {
				return err
			}
			id := made[0].GetId()
			if err := shell(ctx, n, id, "mkdir /work"); err != nil {
				return err
			}
			var frozen, freeze, take, flush, whole []float64
			for range c.n {
				if err := shell(ctx, n, id, c.change); err != nil {
					return err
				}
				start := time.Now()
				r, err := n.Client.PackDiff(ctx, &dsecv1.PackDiffRequest{SandboxId: id, Name: "bench-" + c.name}, nil)
				if err != nil {
					return err
				}
				whole = append(whole, ms(time.Since(start)))
				cost := r.GetReport().GetCost()
				frozen = append(frozen, float64(cost.GetFrozenUsec())/1000)
				freeze = append(freeze, float64(cost.GetFreezeUsec())/1000)
				take = append(take, float64(cost.GetTakeUsec())/1000)
				flush = append(flush, float64(cost.GetFlushUsec())/1000)
			}
			b.add(measure.FromValues("pack_freeze_"+c.name, "ms", frozen, 0))
			b.add(measure.FromValues("pack_freeze_"+c.name+"_stop", "ms", freeze, 0))
			b.add(measure.FromValues("pack_freeze_"+c.name+"_snapshot", "ms", take, 0))
			b.add(measure.FromValues("pack_"+c.name+"_flush", "ms", flush, 0))
			b.add(measure.FromValues("pack_"+c.name, "ms", whole, 0))
			if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
				return err
			}
		}
		return nil
	}, "--opt", "pool=12g", "--opt", "warm=4")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// fork measures forks of 1, 10 and 100 children beside creations of as many, and what a child takes of the pool.
func fork(ctx context.Context, b *bench) error {
	return b.withNode(ctx, func(n *testkit.Node) error {
		made, err := create(ctx, n, 1, 1<<30)
		if err != nil {
			return err
		}
		id := made[0].GetId()
		if err := shell(ctx, n, id, "mkdir /work; head -c 100M /dev/urandom > /work/big; i=0; while [ $i -lt 1000 ]; do echo $i > /work/$i; i=$((i+1)); done"); err != nil {
			return err
		}
		for _, c := range []struct{ count, n int }{{1, b.n}, {10, max(b.n/3, 3)}, {100, 3}} {
			var forks, creates, bytes []float64
			for range c.n {
				start := time.Now()
				made, err := create(ctx, n, int32(c.count), 1<<30)
				if err != nil {
					return err
				}
				creates = append(creates, ms(time.Since(start)))
				if err := stopAll(ctx, n, made); err != nil {
					return err
				}
				start = time.Now()
				made, err = n.Client.Fork(ctx, &dsecv1.ForkSandboxRequest{SandboxId: id, Count: int32(c.count)})
				if err != nil {
					return err
				}
				forks = append(forks, ms(time.Since(start)))
				own, err := ownBytes(ctx, n, made)
				if err != nil {
					return err
				}
				bytes = append(bytes, own...)
				if err := stopAll(ctx, n, made); err != nil {
					return err
				}
			}
			b.add(measure.FromValues(fmt.Sprintf("create_%d", c.count), "ms", creates, 0))
			b.add(measure.FromValues(fmt.Sprintf("fork_%d", c.count), "ms", forks, 0), fmt.Sprintf("create_%d", c.count))
			b.add(measure.FromValues(fmt.Sprintf("fork_%d_bytes", c.count), "KiB", bytes, 0))
		}
		return nil
	}, "--opt", "pool=4g", "--opt", "warm=16")
}

func stopAll(ctx context.Context, n *testkit.Node, made []*dsecv1.Sandbox) error {
	for _, s := range made {
		if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: s.GetId()}); err != nil {
			return err
		}
	}
	return nil
}

// ownBytes is what each child is charged with on the pool, in KiB, once that is accounted.
func ownBytes(ctx context.Context, n *testkit.Node, made []*dsecv1.Sandbox) (out []float64, err error) {
	for _, s := range made {
		r, err := n.Client.Sandboxes.GetSandboxStats(ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: s.GetId()})
		if err != nil {
			return nil, err
		}
		out = append(out, float64(r.GetStats().GetDiskBytes())/1024)
	}
	return out, nil
}
