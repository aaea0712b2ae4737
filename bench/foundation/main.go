package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/bench/measure"
)

type options struct {
	dsec   string
	cache  string
	out    string
	only   string
	n      int
	bursts int
	idle   int
	warm   int
}

// bench is a run: what has been measured, and what it was measured on.
type bench struct {
	o    options
	rows []measure.Row
	node *node
	peer *peers
}

func main() {
	var o options
	cache := os.Getenv("DSEC_CACHE")
	if cache == "" {
		cache = "/var/cache/dsec"
	}
	flag.StringVar(&o.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&o.cache, "cache", cache, "where the base is kept")
	flag.StringVar(&o.out, "out", "bench/out/foundation.json", "where the rows go")
	flag.StringVar(&o.only, "only", "", "comma-separated parts to run: create, burst, exec, sustained, idle (all)")
	flag.IntVar(&o.n, "n", 200, "runs of each figure")
	flag.IntVar(&o.bursts, "bursts", 20, "bursts of each size")
	flag.IntVar(&o.idle, "idle", 1000, "most idle sandboxes at once")
	flag.IntVar(&o.warm, "warm", 16, "warm shells: fewer than the longest burst")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	b := &bench{o: o}
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

func (b *bench) run(ctx context.Context) error {
	work, err := os.MkdirTemp(b.o.cache, "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	tar, err := debianBase(ctx)
	if err != nil {
		return err
	}
	if b.node, err = startNode(ctx, b.o, filepath.Join(work, "node")); err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			_, _ = b.node.stop()
		}
	}()
	if err := b.node.importBases(ctx, tar); err != nil {
		return err
	}
	if b.peer, err = startPeers(ctx, work, tar); err != nil {
		return err
	}
	defer b.peer.stop()
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"create", b.create}, {"burst", b.burst}, {"exec", b.exec}, {"sustained", b.sustained}, {"idle", b.idle}} {
		if b.wants(part.name) {
			fmt.Fprintln(os.Stderr, "measuring", part.name)
			if err := part.f(ctx); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
	}
	stopped = true
	left, err := b.node.stop()
	if err != nil {
		return err
	}
	for _, l := range left {
		fmt.Fprintln(os.Stderr, "left behind:", l)
	}
	b.rows = append(b.rows, measure.FromValues("leftovers", "count", []float64{float64(len(left))}, 0))
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(b.o.out, b.rows)
}

// times measures and keeps a row.
func (b *bench) times(ctx context.Context, name string, n, at int, f func(context.Context, int) error) measure.Row {
	return b.keep(name)(measure.Times(ctx, n, at, f))
}

// bursts is times for bursts.
func (b *bench) bursts(ctx context.Context, name string, size int, f func(context.Context, int) error, rest func(context.Context) error) measure.Row {
	return b.keep(name)(measure.Bursts(ctx, b.o.bursts, size, f, rest))
}

func (b *bench) keep(name string) func([]time.Duration, int, error) measure.Row {
	return func(t []time.Duration, failures int, first error) measure.Row {
		r := measure.FromDurations(name, t, failures)
		if first != nil {
			r.Note = "first failure: " + first.Error()
		}
		b.rows = append(b.rows, r)
		return r
	}
}

// ratio notes ratios of the row called name.
func (b *bench) ratio(name string, to ...measure.Row) {
	for i := range b.rows {
		if b.rows[i].Name == name {
			for _, t := range to {
				b.rows[i].Ratio(t)
			}
		}
	}
}
