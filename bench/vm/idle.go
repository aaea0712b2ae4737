package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
)

// exec measures a command in a running machine, and in a container.
func (b *bench) exec(ctx context.Context) error {
	for _, k := range []struct {
		name    string
		backend dsecv1.Backend
	}{{"container_exec_round_trip", dsecv1.Backend_BACKEND_CONTAINER}, {"microvm_exec_round_trip", dsecv1.Backend_BACKEND_MICROVM}} {
		id, err := b.create(ctx, k.backend, "")
		if err != nil {
			return err
		}
		run := func(ctx context.Context, _ int) error { return b.command(ctx, id, programs[0].argv) }
		for i := range 5 { // the first ones are slower
			if err := run(ctx, i); err != nil {
				return err
			}
		}
		times, failures, first := measure.Times(ctx, 8*b.o.n, 1, run)
		if first != nil {
			return first
		}
		b.rows = append(b.rows, measure.FromDurations(k.name, times, failures))
		if err := b.stopAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// idleTime is how long the processor time of idle machines is looked at; restTime how long they have been idle by then, which
// is what they take to write back what their creation has written.
const (
	idleTime = 30 * time.Second
	restTime = 10 * time.Second
)

// idleLevels are how many machines are live.
var idleLevels = []int{24, 50, 100}

// idle measures what machines cost that have run one command and do nothing.
func (b *bench) idle(ctx context.Context) error {
	var live []string
	for _, level := range idleLevels {
		if level > b.o.idle {
			break
		}
		for len(live) < level {
			id, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, "")
			if err != nil {
				return err
			}
			if err := b.command(ctx, id, programs[0].argv); err != nil {
				return err
			}
			live = append(live, id)
		}
		if err := b.awaitReady(ctx, readyMachines); err != nil { // what is made behind their back is done
			return err
		}
		if err := pause(ctx, restTime); err != nil {
			return err
		}
		pids, err := b.machines(live...)
		if err != nil {
			return err
		}
		if len(pids) != level {
			return fmt.Errorf("%d machines of %d run", len(pids), level)
		}
		var pss []float64
		for _, pid := range pids {
			if v, err := memory(pid); err == nil {
				pss = append(pss, v)
			}
		}
		row := measure.FromValues("microvm_idle_memory_"+strconv.Itoa(level), "MiB", pss, 0)
		row.Note = fmt.Sprintf("proportional set sizes of QEMU, with %d machines of the pool beside", readyMachines)
		before, start := ticks(pids), time.Now()
		if err := pause(ctx, idleTime); err != nil {
			return err
		}
		seconds := (ticks(pids) - before) / 100 // USER_HZ
		share := 100 * seconds / time.Since(start).Seconds() / float64(level)
		b.rows = append(b.rows, row, measure.FromValues("microvm_idle_cpu_"+strconv.Itoa(level), "% of a core", []float64{share}, 0))
	}
	return b.stopAll(ctx)
}

// pause lets machines be idle.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// machines are the processes of sandboxes' QEMUs, as their records say: one that is in a jail tells nothing by where it is.
func (b *bench) machines(ids ...string) ([]int, error) {
	var out []int
	for _, id := range ids {
		var r struct {
			PID   int  `json:"pid"`
			Saved bool `json:"saved"`
		}
		text, err := os.ReadFile(filepath.Join(b.state, "run", "vm", id, "record.json"))
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, err
		}
		if r.PID > 0 && !r.Saved {
			out = append(out, r.PID)
		}
	}
	return out, nil
}

// memory is a process's proportional set size, MiB.
func memory(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "Pss:" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory", pid)
}

// ticks is the processor time of processes, in clock ticks.
func ticks(pids []int) (sum float64) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 12 {
			user, _ := strconv.ParseFloat(f[11], 64)
			system, _ := strconv.ParseFloat(f[12], 64)
			sum += user + system
		}
	}
	return sum
}
