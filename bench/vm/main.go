package main

import (
	"archive/tar"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

type options struct {
	dsec  string
	out   string
	only  string
	n     int
	cold  int
	idle  int
	snaps int
	// readers is how many machines read the same layers.
	readers int
}

// bench is a run.
type bench struct {
	o     options
	rows  []measure.Row
	work  string
	state string // of the node that runs
	node  *testkit.Node
	tasks int // workspaces uploaded to it
	nodes int // started so far

	kernel guestKernel // of machines that nodes start from here on
}

// ready is how many machines and shells the node under measurement keeps ready.
const (
	readyMachines = 4
	readyShells   = 2
)

func main() {
	var o options
	flag.StringVar(&o.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&o.out, "out", "bench/out/vm.json", "where the rows go")
	flag.StringVar(&o.only, "only", "", "comma-separated parts to run: create, exec, idle, snapshots, pmem, kernels (all)")
	flag.IntVar(&o.n, "n", 12, "creations of each figure")
	flag.IntVar(&o.cold, "cold", 4, "cold boots of each figure")
	flag.IntVar(&o.idle, "idle", 100, "most idle machines at once")
	flag.IntVar(&o.snaps, "snapshots", 4, "snapshots of each size, and pauses")
	flag.IntVar(&o.readers, "readers", 8, "machines that read the same layers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	b := &bench{o: o, kernel: debianKernel()}
	err := b.run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) wants(part string) bool {
	return b.o.only == "" || strings.Contains(","+b.o.only+",", ","+part+",")
}

func (b *bench) run(ctx context.Context) (err error) {
	base, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(testkit.Cache(), "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	if b.wants("create") {
		if err := b.with(ctx, base, 0, b.cold); err != nil {
			return err
		}
	}
	if b.wants("snapshots") { // paused ones are put on disk at once
		if err := b.with(ctx, base, 0, b.snapshots, "pause-keeps-memory=0s"); err != nil {
			return fmt.Errorf("snapshots: %w", err)
		}
	}
	if b.wants("pmem") {
		if err := b.shared(ctx, base); err != nil {
			return err
		}
	}
	if b.wants("kernels") {
		fmt.Fprintln(os.Stderr, "measuring kernels")
		if err := b.kernels(ctx, base); err != nil {
			return fmt.Errorf("kernels: %w", err)
		}
	}
	if !b.wants("create") && !b.wants("exec") && !b.wants("idle") {
		return b.save()
	}
	err = b.with(ctx, base, readyMachines, func(ctx context.Context) error {
		for _, part := range []struct {
			name string
			f    func(context.Context) error
		}{{"create", b.warm}, {"exec", b.exec}, {"idle", b.idle}} {
			if !b.wants(part.name) {
				continue
			}
			fmt.Fprintln(os.Stderr, "measuring", part.name)
			if err := part.f(ctx); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.save()
}

// save prints and keeps the rows.
func (b *bench) save() error {
	b.ratios()
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(b.o.out, b.rows)
}

// with runs f beside a node of its own that keeps so many machines ready.
func (b *bench) with(ctx context.Context, base string, warm int, f func(context.Context) error, opts ...string) (err error) {
	b.nodes++
	b.state, b.tasks = filepath.Join(b.work, "node-"+strconv.Itoa(b.nodes)), 0
	args := []string{"--opt", "pool=1g", "--opt", "warm=" + strconv.Itoa(readyShells), "--opt", "microvm=on", "--opt", "microvm-warm=" + strconv.Itoa(warm),
		"--opt", "kernel=" + b.kernel.dir}
	for _, o := range opts {
		args = append(args, "--opt", o)
	}
	b.node, err = testkit.StartNode(ctx, b.o.dsec, b.state, args...)
	if err != nil {
		return err
	}
	defer func() {
		left, serr := b.node.Stop()
		if err == nil && serr != nil {
			err = serr
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %q", left)
		}
	}()
	file, err := os.Open(base)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := b.node.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "debian"}, file, nil); err != nil {
		return err
	}
	return f(ctx)
}

// task uploads a workspace that no other sandbox has, and returns its name.
func (b *bench) task(ctx context.Context) (string, error) {
	b.tasks++
	name := "task-" + strconv.Itoa(b.tasks)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	own := name + "\n"
	if err := tw.WriteHeader(&tar.Header{Name: "task", Mode: 0o644, Size: int64(len(own))}); err != nil {
		return "", err
	}
	if _, err := tw.Write([]byte(own)); err != nil {
		return "", err
	}
	if err := tw.Close(); err != nil {
		return "", err
	}
	_, err := b.node.Client.UploadLayer(ctx, client.Upload{Kind: "workspace", Name: name}, &buf, nil)
	return name, err
}
