package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
)

// touched are how many MiB of memory a machine holds that is kept; all have the same shape.
var touched = []int{10, 100, 400}

// touchedLimit is the memory of those machines, MiB.
const touchedLimit = 1024

// times are the values of one row.
type times struct {
	mu       sync.Mutex
	took     []time.Duration
	failures int
	first    error
}

func (t *times) add(d time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.took = append(t.took, d)
		return
	}
	if t.failures++; t.first == nil {
		t.first = err
	}
}

func (b *bench) row(name string, t *times) {
	row := measure.FromDurations(name, t.took, t.failures)
	if t.first != nil {
		row.Note = "first failure: " + t.first.Error()
	}
	b.rows = append(b.rows, row)
}

// snapshots measures what it takes to keep a machine with its memory, and to go on from it: as new ones, as copies, and, of one
// that is paused, as itself.
func (b *bench) snapshots(ctx context.Context) error {
	for _, mib := range touched {
		fmt.Fprintln(os.Stderr, "measuring snapshots of", mib, "MiB")
		if err := b.snapshotsOf(ctx, mib); err != nil {
			return fmt.Errorf("%d MiB: %w", mib, err)
		}
	}
	return nil
}

func (b *bench) snapshotsOf(ctx context.Context, mib int) (err error) {
	id, err := b.holding(ctx, mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stopAll(ctx)) }()
	suffix := "_" + strconv.Itoa(mib) + "mb"
	var taken, restored, restoredFirst times
	var bytes []float64
	for range b.o.snaps {
		if err := b.snapshotOnce(ctx, id, &taken, &restored, &restoredFirst, &bytes); err != nil {
			return err
		}
	}
	b.row("microvm_snapshot"+suffix, &taken)
	b.rows = append(b.rows, measure.FromValues("microvm_snapshot_size"+suffix, "MiB", bytes, 0))
	b.row("microvm_restore"+suffix, &restored)
	b.row("microvm_restore_first_result"+suffix, &restoredFirst)
	for _, n := range []int{1, 8} {
		var all, first times
		for range max(b.o.snaps/n, 1) {
			b.forkOnce(ctx, id, n, &all, &first)
		}
		name := "microvm_fork_" + strconv.Itoa(n)
		b.row(name+suffix, &all)
		b.row(name+"_first_result"+suffix, &first)
	}
	var saved, resumed times
	for range b.o.snaps {
		b.pauseOnce(ctx, id, &saved, &resumed)
	}
	b.row("microvm_pause_saved"+suffix, &saved)
	b.row("microvm_resume_first_result"+suffix, &resumed)
	return nil
}

// holding makes a machine with so many MiB in memory that no two pages of a machine's have alike, or as zeros.
func (b *bench) holding(ctx context.Context, mib int) (string, error) {
	ttl, patience := 3600.0, 600.0
	boxes, err := b.node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: "debian"}, Backend: dsecv1.Backend_BACKEND_MICROVM,
		Limits:     &dsecv1.Limits{MemoryBytes: touchedLimit << 20, CpuMillis: 1000, Pids: 128, DiskBytes: 64 << 20, ShmBytes: 512 << 20},
		Labels:     map[string]string{"job": "bench"},
		TtlSeconds: &ttl, CreateTimeoutSeconds: &patience,
	}})
	if err != nil {
		return "", err
	}
	id := boxes[0].GetId()
	fill := fmt.Sprintf("head -c 1M /dev/urandom > /dev/shm/one; for i in $(seq %d); do cat /dev/shm/one; done > /dev/shm/all", mib-1)
	return id, b.command(ctx, id, []string{"/bin/sh", "-c", fill})
}

// snapshotOnce takes one, and makes a sandbox of it.
func (b *bench) snapshotOnce(ctx context.Context, id string, taken, restored, first *times, bytes *[]float64) error {
	start := time.Now()
	resp, err := b.node.Client.Snapshots.CreateSnapshot(ctx, &dsecv1.CreateSnapshotRequest{SandboxId: id})
	taken.add(time.Since(start), err)
	if err != nil {
		return err
	}
	kept := resp.GetSnapshot().GetId()
	*bytes = append(*bytes, onDisk(filepath.Join(b.state, "vm-snapshots", kept)))
	ttl := 3600.0
	start = time.Now()
	boxes, err := b.node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Snapshot: kept}, Labels: map[string]string{"job": "bench"}, TtlSeconds: &ttl}})
	restored.add(time.Since(start), err)
	if err == nil {
		err = b.command(ctx, boxes[0].GetId(), programs[0].argv)
		first.add(time.Since(start), err)
		err = errors.Join(err, b.stop(ctx, boxes[0].GetId()))
	}
	_, derr := b.node.Client.Snapshots.DeleteSnapshot(ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: kept})
	return errors.Join(err, derr)
}

// forkOnce makes n copies, and runs a command in each at once.
func (b *bench) forkOnce(ctx context.Context, id string, n int, all, first *times) {
	start := time.Now()
	copies, err := b.node.Client.Fork(ctx, &dsecv1.ForkSandboxRequest{SandboxId: id, Count: int32(n)})
	all.add(time.Since(start), err)
	var wg sync.WaitGroup
	for _, c := range copies {
		wg.Go(func() {
			err := b.command(ctx, c.GetId(), programs[0].argv)
			first.add(time.Since(start), err)
		})
	}
	wg.Wait()
	for _, c := range copies {
		if err := b.stop(ctx, c.GetId()); err != nil {
			all.add(0, err)
		}
	}
}

// savedWait bounds the putting away of one.
const savedWait = 2 * time.Minute

// pauseOnce pauses the machine until its memory is on disk, and then runs a command in it.
func (b *bench) pauseOnce(ctx context.Context, id string, saved, resumed *times) {
	start := time.Now()
	_, err := b.node.Client.Sandboxes.PauseSandbox(ctx, &dsecv1.PauseSandboxRequest{SandboxId: id})
	for err == nil {
		var resp *dsecv1.GetSandboxResponse
		resp, err = b.node.Client.Sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: id})
		if err != nil || resp.GetSandbox().GetSaved() {
			break
		}
		if time.Since(start) > savedWait {
			err = fmt.Errorf("not saved within %v", savedWait)
		}
		time.Sleep(5 * time.Millisecond)
	}
	saved.add(time.Since(start), err)
	start = time.Now()
	err = b.command(ctx, id, programs[0].argv)
	resumed.add(time.Since(start), err)
}

func (b *bench) stop(ctx context.Context, id string) error {
	_, err := b.node.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}

// onDisk is what a directory's files take, MiB; what they share with others is counted.
func onDisk(dir string) (sum float64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil && syscall.Lstat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
			sum += float64(st.Blocks) * 512 / (1 << 20)
		}
		return nil
	})
	return sum
}
