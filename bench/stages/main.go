package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/container"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
)

type options struct {
	init string
	out  string
	n    int
	warm int
}

func main() {
	var o options
	flag.StringVar(&o.init, "init", "bin/dsec-init", "the dsec-init binary")
	flag.StringVar(&o.out, "out", "bench/out/stages.json", "where the rows go")
	flag.IntVar(&o.n, "n", 200, "lives")
	flag.IntVar(&o.warm, "warm", 8, "warm shells")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	err := run(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// costs collects times by stage.
type costs struct {
	mu    sync.Mutex
	order []string
	took  map[string][]time.Duration
}

func (c *costs) note(stage string, d time.Duration) {
	stage = "stage_" + strings.TrimSuffix(stage, "_shell")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.took[stage] == nil {
		c.order = append(c.order, stage)
	}
	c.took[stage] = append(c.took[stage], d)
}

func (c *costs) rows() (rows []measure.Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.order {
		rows = append(rows, measure.FromDurations(name, c.took[name], 0))
	}
	return rows
}

func run(ctx context.Context, o options) (err error) {
	bin, err := filepath.Abs(o.init)
	if err != nil {
		return err
	}
	store, digest, err := testkit.BaseLayer(ctx)
	if err != nil {
		return err
	}
	state, err := os.MkdirTemp(testkit.Cache(), "stages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	d, err := container.New(ctx, container.Config{
		StateDir: state, Edge: sandbox.NewEdgeID(), InitBinary: bin, Layers: posix.NewNode(store),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), Warm: o.warm, PoolBytes: 512 << 20,
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := d.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}()
	c := &costs{took: map[string][]time.Duration{}}
	d.SetObserver(c.note)
	spec := &sandbox.Spec{Backend: sandbox.BackendContainer,
		Layers: []sandbox.LayerRef{{Digest: string(digest), Kind: "base", Name: "debian"}},
		Limits: sandbox.Limits{MemoryBytes: 256 << 20, CPUMillis: 2000, Pids: 200, DiskBytes: 64 << 20, ShmBytes: 16 << 20}}
	for i := range o.n {
		if err := life(ctx, d, spec, c); err != nil {
			return fmt.Errorf("life %d: %w", i, err)
		}
	}
	rows := c.rows()
	if err := measure.Print(os.Stdout, rows); err != nil {
		return err
	}
	return measure.Save(o.out, rows)
}

// life makes a sandbox, runs two commands in it and destroys it.
func life(ctx context.Context, d *container.Driver, spec *sandbox.Spec, c *costs) (err error) {
	start := time.Now()
	inst, err := d.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		if derr := inst.Destroy(context.WithoutCancel(ctx)); err == nil {
			err = derr
		}
	}()
	c.note("create", time.Since(start))
	r, err := open(ctx, inst)
	if err != nil {
		return err
	}
	defer r.close()
	for _, stage := range []string{"first_exec", "second_exec"} {
		t := time.Now()
		if err := r.exec(ctx, stage, "/bin/true"); err != nil {
			return err
		}
		c.note(stage, time.Since(t))
	}
	return nil
}
