package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
)

// programs are what is run first; figures of the second end in its name.
var programs = []struct {
	suffix string
	argv   []string
}{{"", []string{"/bin/true"}}, {"_bash", []string{"/bin/bash", "-c", ":"}}}

// calm bounds the waits for the node to have machines ready.
const calm = 5 * time.Minute

func (b *bench) create(ctx context.Context, backend dsecv1.Backend, workspace string) (string, error) {
	return b.createOf(ctx, backend, workspace, 128<<20)
}

func (b *bench) command(ctx context.Context, id string, argv []string) error {
	resp, err := b.node.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: argv}})
	if err != nil {
		return err
	}
	if res := resp.GetCommand().GetResult(); res.GetEnd().GetKind() != "exited" || res.GetExitCode() != 0 {
		return fmt.Errorf("%q: %s, exit code %d", argv, res.GetEnd().GetKind(), res.GetExitCode())
	}
	return nil
}

func (b *bench) stopAll(ctx context.Context) error {
	_, err := b.node.Client.Sandboxes.StopSandboxes(ctx, &dsecv1.StopSandboxesRequest{Labels: map[string]string{"job": "bench"}})
	return err
}

// boot is what a sandbox's events tell of how it came up.
func (b *bench) boot(ctx context.Context, id string) (string, error) {
	s, err := b.node.Client.Sandboxes.StreamEvents(ctx, &dsecv1.StreamEventsRequest{SandboxId: id})
	if err != nil {
		return "", err
	}
	defer s.Close()
	for s.Receive() {
		if e := s.Msg().GetEvent(); e.GetType() == "ready" {
			return e.GetAttributes()["boot"], nil
		}
	}
	return "", errors.Join(errors.New("no event says how it came up"), s.Err())
}

// settle waits until nothing runs and all that is kept ready is.
func (b *bench) settle(ctx context.Context, machines int) error {
	if err := b.stopAll(ctx); err != nil {
		return err
	}
	return b.awaitReady(ctx, machines)
}

func (b *bench) awaitReady(ctx context.Context, machines int) error {
	ctx, cancel := context.WithTimeout(ctx, calm)
	defer cancel()
	var shells, ready int
	for {
		r, err := b.node.Client.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
		if err != nil {
			return err
		}
		shells, ready = int(r.GetWarm()["container"]), int(r.GetWarm()["microvm"])
		if ready >= machines && shells >= readyShells {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d machines and %d shells are ready, want %d and %d: %w", ready, shells, machines, readyShells, ctx.Err())
		}
	}
}

// first measures bursts of `at` creations up to the first command's result, n in all. Those that did not come up in the
// way wanted are counted apart.
func (b *bench) first(ctx context.Context, name, boot string, n, at int, argv []string, prepare func(context.Context) error) error {
	var times, created []time.Duration
	others, failures := 0, 0
	var failure error
	for range (n + at - 1) / at {
		if err := prepare(ctx); err != nil {
			return err
		}
		tasks := make([]string, at)
		for i := range tasks {
			var err error
			if tasks[i], err = b.task(ctx); err != nil {
				return err
			}
		}
		if boot == "clone" { // takes what is ready
			if _, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, ""); err != nil {
				return err
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, task := range tasks {
			wg.Go(func() {
				start := time.Now()
				id, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, task)
				half := time.Since(start)
				if err == nil {
					err = b.command(ctx, id, argv)
				}
				took := time.Since(start)
				var got string
				if err == nil {
					got, err = b.boot(ctx, id)
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					failures, failure = failures+1, err
				case got != boot:
					others++
				default:
					times, created = append(times, took), append(created, half)
				}
			})
		}
		wg.Wait()
		if err := b.stopAll(ctx); err != nil {
			return err
		}
	}
	row := measure.FromDurations(name+b.kernel.suffix, times, failures)
	if others > 0 {
		row.Note = fmt.Sprintf("%d more came up in another way", others)
	}
	if failure != nil {
		row.Note += " first failure: " + failure.Error()
	}
	b.rows = append(b.rows, row, measure.FromDurations(name+"_created"+b.kernel.suffix, created, failures))
	return nil
}

// stages are what the node says of machines that came up, in its whole life: the parts of a creation.
func (b *bench) stages(ctx context.Context) error {
	r, err := b.node.Client.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
	if err != nil {
		return err
	}
	for _, s := range r.GetStages() {
		if name, ok := strings.CutPrefix(s.GetStage(), "microvm_"); ok {
			b.rows = append(b.rows, measure.Row{Name: "microvm_stage_" + name + b.kernel.suffix, N: int(s.GetCount()), Unit: "ms",
				P50: s.GetP50Usec() / 1000, P99: s.GetP99Usec() / 1000})
		}
	}
	return nil
}

// cold measures boots.
func (b *bench) cold(ctx context.Context) error {
	rest := func(ctx context.Context) error { return b.settle(ctx, 0) }
	for _, p := range programs {
		if err := b.first(ctx, "cold_boot"+p.suffix, "cold", b.o.cold, 1, p.argv, rest); err != nil {
			return err
		}
	}
	return b.first(ctx, "cold_boot_c4", "cold", 8, 4, programs[0].argv, rest)
}

// warm measures claims of machines that are ready, and clones where none is.
func (b *bench) warm(ctx context.Context) error {
	if _, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, ""); err != nil { // says what shape is wanted
		return err
	}
	full := func(ctx context.Context) error { return b.settle(ctx, readyMachines) }
	for _, p := range programs {
		if err := b.first(ctx, "microvm_first_result"+p.suffix, "warm", b.o.n, 1, p.argv, full); err != nil {
			return err
		}
	}
	if err := b.stages(ctx); err != nil {
		return err
	}
	if err := b.first(ctx, "microvm_first_result_c4", "warm", b.o.n, 4, programs[0].argv, full); err != nil {
		return err
	}
	// The pool is emptied by as many creations as it has, and refills only when none is under way.
	empty := func(ctx context.Context) error {
		if err := full(ctx); err != nil {
			return err
		}
		return b.take(ctx, readyMachines-1)
	}
	return b.first(ctx, "microvm_clone_first_result", "clone", b.o.cold, 1, programs[0].argv, empty)
}

// take makes machines that nothing is run in, all at once.
func (b *bench) take(ctx context.Context, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { _, errs[i] = b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, "") })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ratios compares: with cold boots of the same kernel, and what that one's are with Debian's.
func (b *bench) ratios() {
	of := map[string]*measure.Row{}
	for i := range b.rows {
		of[b.rows[i].Name] = &b.rows[i]
	}
	ratio := func(name, to string) {
		if of[name] != nil && of[to] != nil {
			of[name].Ratio(*of[to])
		}
	}
	for _, own := range []string{"", ownKernel} {
		for name, to := range map[string]string{"microvm_first_result": "cold_boot", "microvm_first_result_bash": "cold_boot_bash",
			"microvm_first_result_c4": "cold_boot_c4", "microvm_clone_first_result": "cold_boot"} {
			ratio(name+own, to+own)
			if own != "" {
				ratio(name+own, name)
				ratio(to+own, to)
			}
		}
	}
	ratio("microvm_exec_round_trip", "container_exec_round_trip")
	ratio("pmem_dax_memory", "virtio_blk_memory")
	ratio("boot_cpu"+ownKernel, "boot_cpu")
	ratio("boot_memory"+ownKernel, "boot_memory")
}
