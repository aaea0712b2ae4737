package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/testkit"
)

// kernels measures a cold boot of Debian's kernel and of the own one, where one was built, in turn: until the first command's
// result, what of a processor that took, and what the machine then holds.
func (b *bench) kernels(ctx context.Context, base string) error {
	built := kernel.List(testkit.Cache())
	if len(built) == 0 {
		fmt.Fprintln(os.Stderr, "no own kernel: make kernel")
		return nil
	}
	own := built[len(built)-1]
	note := own.Version
	if st, err := os.Stat(own.Image()); err == nil {
		note += fmt.Sprintf(", %.1f MB", float64(st.Size())/1e6)
	}
	type figures struct {
		times       []time.Duration
		cpu, memory []float64
		note        string
	}
	of := map[string]*figures{"own": {note: note}, "debian": {}}
	for range (b.o.cold + 1) / 2 { // in turn: what else the machine does is the same for both
		for name, dir := range map[string]string{"own": own.Dir, "debian": filepath.Join(testkit.Cache(), "kernel")} {
			f := of[name]
			err := b.with(ctx, base, 0, func(ctx context.Context) error {
				for i := range 3 {
					start := time.Now()
					id, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, "")
					if err == nil {
						err = b.command(ctx, id, programs[0].argv)
					}
					if err != nil {
						return err
					}
					took := time.Since(start)
					pids, err := b.machines()
					if err != nil || len(pids) != 1 {
						return cmp.Or(err, fmt.Errorf("%d machines, want one", len(pids)))
					}
					used := ticks(pids) / 100 // USER_HZ
					held, err := memory(pids[0])
					if err != nil {
						return err
					}
					if i > 0 { // the first one waits for the initial file system to be made
						f.times, f.cpu, f.memory = append(f.times, took), append(f.cpu, used), append(f.memory, held)
					}
					if err := b.settle(ctx, 0); err != nil {
						return err
					}
				}
				return nil
			}, "kernel="+dir)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for _, name := range []string{"debian", "own"} {
		f := of[name]
		for i, row := range []measure.Row{measure.FromDurations("cold_boot_"+name, f.times, 0), measure.FromValues("cold_boot_cpu_"+name, "s", f.cpu, 0),
			measure.FromValues("cold_boot_memory_"+name, "MiB", f.memory, 0)} {
			if i == 0 {
				row.Note = f.note
			}
			b.rows = append(b.rows, row)
		}
	}
	return nil
}
