package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/linux"
)

// shared measures what the node's memory takes of machines that all read the whole of the same layers, as disks and as memory.
func (b *bench) shared(ctx context.Context, base string) error {
	for _, c := range []struct{ name, how string }{{"virtio_blk_memory", "blk"}, {"pmem_dax_memory", "pmem"}} {
		fmt.Fprintln(os.Stderr, "measuring", c.name)
		err := b.with(ctx, base, 0, func(ctx context.Context) error { return b.readAll(ctx, c.name) }, "microvm-layers="+c.how)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// readAll makes the machines, and the row.
func (b *bench) readAll(ctx context.Context, name string) error {
	files, err := b.layerFiles()
	if err != nil {
		return err
	}
	for _, f := range files { // what bringing them here has left
		if err := linux.ForgetPages(f); err != nil {
			return err
		}
	}
	ids := make([]string, b.o.readers)
	for i := range ids {
		if ids[i], err = b.createOf(ctx, dsecv1.Backend_BACKEND_MICROVM, "", 512<<20); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr, "reading in", len(ids), "machines")
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		wg.Go(func() {
			errs[i] = b.command(ctx, id, []string{"/bin/sh", "-c", "find / -xdev -type f -size -1000000 -exec cat {} + > /dev/null"})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	total, note, err := b.hostMemory(ids)
	if err != nil {
		return err
	}
	row := measure.FromValues(name, "MiB", []float64{total}, 0)
	row.Note = note
	b.rows = append(b.rows, row)
	return b.stopAll(ctx)
}

// layerFiles are those of the node's layers, in its store and in what it made of them.
func (b *bench) layerFiles() (out []string, err error) {
	err = filepath.WalkDir(b.state, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case e.IsDir() && e.Name() == "run":
			return fs.SkipDir
		case e.Type().IsRegular() && isLayerFile(path):
			out = append(out, path)
		}
		return nil
	})
	return out, err
}

func isLayerFile(path string) bool {
	name := filepath.Base(path)
	return name == "data" || name == "meta.erofs" || filepath.Base(filepath.Dir(path)) == "vm-heads"
}

// hostMemory is what the machines take of the node's memory, MiB: the proportional set sizes of their QEMUs, in which the guests' own
// memory is, without what those map of layers' files, and once what the kernel has of those files.
func (b *bench) hostMemory(ids []string) (total float64, note string, err error) {
	pids, err := b.machines(ids...)
	if err != nil {
		return 0, "", err
	}
	if len(pids) != len(ids) {
		return 0, "", fmt.Errorf("%d QEMUs run, want %d", len(pids), len(ids))
	}
	var own, mapped, cached float64
	for _, pid := range pids {
		o, m, err := split(pid)
		if err != nil {
			return 0, "", err
		}
		own, mapped = own+o, mapped+m
	}
	files, err := b.layerFiles()
	if err != nil {
		return 0, "", err
	}
	for _, f := range files {
		out, err := exec.Command("fincore", "--bytes", "--noheadings", "--output", "RES", f).Output()
		if err != nil {
			return 0, "", fmt.Errorf("fincore: %w", err)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil {
			return 0, "", err
		}
		cached += n / (1 << 20)
	}
	return own + cached, fmt.Sprintf("%d machines: %.0f MiB of QEMUs and guests, %.0f MiB of the layers' files in the kernel's memory (%.0f of them mapped)",
		len(pids), own, cached, mapped), nil
}

// split is a process's proportional set size, MiB: without layers' files, and of those.
func split(pid int) (own, mapped float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, 0, err
	}
	of := &own
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && strings.Contains(f[0], "-") && !strings.HasSuffix(f[0], ":"):
			if of = &own; len(f) >= 6 && isLayerFile(f[5]) {
				of = &mapped
			}
		case len(f) >= 2 && f[0] == "Pss:":
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return 0, 0, err
			}
			*of += kib / 1024
		}
	}
	return own, mapped, nil
}

// createOf is create with so much memory, bytes.
func (b *bench) createOf(ctx context.Context, backend dsecv1.Backend, workspace string, memory int64) (string, error) {
	ttl, patience := 3600.0, 600.0
	env := &dsecv1.Environment{Base: "debian"}
	if workspace != "" {
		env.Workspace = workspace
	}
	boxes, err := b.node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: env, Backend: backend,
		Limits:     &dsecv1.Limits{MemoryBytes: memory, CpuMillis: 1000, Pids: 128, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		Labels:     map[string]string{"job": "bench"},
		TtlSeconds: &ttl, CreateTimeoutSeconds: &patience,
	}})
	if err != nil {
		return "", err
	}
	return boxes[0].GetId(), nil
}
