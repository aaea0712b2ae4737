package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/testkit"
)

// ownKernel ends the names of rows that were measured with the own kernel; all others are of Debian's.
const ownKernel = "_own"

// guestKernel is what machines boot.
type guestKernel struct{ suffix, dir, note string }

func debianKernel() guestKernel { return guestKernel{dir: filepath.Join(testkit.Cache(), "kernel")} }

// kernels measures creations with the own kernel, where one was built, and what a boot takes of a processor and a machine
// then holds, in turn with Debian's.
func (b *bench) kernels(ctx context.Context, base string) error {
	built := kernel.Newest(testkit.Cache())
	if built == nil {
		fmt.Fprintln(os.Stderr, "no own kernel: make kernel")
		return nil
	}
	own := guestKernel{suffix: ownKernel, dir: built.Dir, note: built.Version}
	if st, err := os.Stat(built.Image()); err == nil {
		own.note += fmt.Sprintf(", %.1f MB", float64(st.Size())/1e6)
	}
	if err := b.boots(ctx, base, debianKernel(), own); err != nil {
		return err
	}
	b.kernel = own
	defer func() { b.kernel = debianKernel() }()
	if err := b.with(ctx, base, 0, b.cold); err != nil {
		return err
	}
	return b.with(ctx, base, readyMachines, b.warm)
}

// boots measures cold boots until a first command's result: processor's time, and memory that is held.
func (b *bench) boots(ctx context.Context, base string, kernels ...guestKernel) error {
	cpu, held := map[string][]float64{}, map[string][]float64{}
	for range (b.o.cold + 1) / 2 { // in turn: what else the host does is the same for both
		for _, b.kernel = range kernels {
			err := b.with(ctx, base, 0, func(ctx context.Context) error {
				for i := range 3 {
					id, err := b.create(ctx, dsecv1.Backend_BACKEND_MICROVM, "")
					if err == nil {
						err = b.command(ctx, id, programs[0].argv)
					}
					if err != nil {
						return err
					}
					pids, err := b.machines(id)
					if err != nil || len(pids) != 1 {
						return cmp.Or(err, fmt.Errorf("%d machines, want one", len(pids)))
					}
					used := ticks(pids) / 100 // USER_HZ
					m, err := memory(pids[0])
					if err != nil {
						return err
					}
					if i > 0 { // the first one waits for the initial file system to be made
						cpu[b.kernel.suffix], held[b.kernel.suffix] = append(cpu[b.kernel.suffix], used), append(held[b.kernel.suffix], m)
					}
					if err := b.settle(ctx, 0); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", b.kernel.dir, err)
			}
		}
	}
	for _, k := range kernels {
		row := measure.FromValues("boot_cpu"+k.suffix, "s", cpu[k.suffix], 0)
		row.Note = k.note
		b.rows = append(b.rows, row, measure.FromValues("boot_memory"+k.suffix, "MiB", held[k.suffix], 0))
	}
	return nil
}
