package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/bench/measure"
)

// part is one group of figures.
type part struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

// parts are added by the files of this package, in init.
var parts []part

// bench is a run: its options and what has been measured.
type bench struct {
	dsec string
	work string // a directory on disk, of this run
	n    int
	// images is how many a burst runs over.
	images int
	rows   []measure.Row
}

func main() {
	cache := os.Getenv("DSEC_CACHE")
	if cache == "" {
		cache = "/var/cache/dsec"
	}
	b := &bench{}
	out := flag.String("out", "bench/out/environments.json", "where the rows go")
	only := flag.String("only", "", "comma-separated parts to run (all)")
	flag.StringVar(&b.dsec, "dsec", "bin/dsec", "the dsec binary, with dsec-init beside it")
	flag.IntVar(&b.n, "n", 30, "runs of each figure")
	flag.IntVar(&b.images, "images", 40, "images of the burst, 300 MB and more each")
	flag.Parse()
	start := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	err := b.run(ctx, cache, *only)
	cancel()
	stop()
	if err == nil {
		err = measure.Print(os.Stdout, b.rows)
	}
	if err == nil {
		err = measure.Save(*out, b.rows)
	}
	fmt.Fprintln(os.Stderr, "measured in", time.Since(start).Round(time.Second))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, cache, only string) error {
	slices.SortFunc(parts, func(x, y part) int { return strings.Compare(x.name, y.name) })
	var err error
	if b.work, err = os.MkdirTemp(cache, "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	for _, p := range parts {
		if only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", p.name)
		start := time.Now()
		if err := p.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintln(os.Stderr, p.name, "took", time.Since(start).Round(time.Second))
	}
	return nil
}

// add keeps a row, with ratios to rows that were kept before.
func (b *bench) add(r measure.Row, to ...string) {
	for _, name := range to {
		for _, other := range b.rows {
			if other.Name == name {
				r.Ratio(other)
			}
		}
	}
	b.rows = append(b.rows, r)
}
