package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/bench/measure"
)

type bench struct {
	only  string
	n     int
	slots int
	rows  []measure.Row
}

func main() {
	b := &bench{}
	out := flag.String("out", "bench/out/network.json", "where the rows go")
	flag.StringVar(&b.only, "only", "", "comma-separated parts to run: link, policy, traffic, rules (all)")
	flag.IntVar(&b.n, "n", 300, "runs of each figure")
	flag.IntVar(&b.slots, "slots", 1000, "sandboxes whose policy changes at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	err := b.run(ctx, *out)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, out string) error {
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"link", b.links}, {"policy", b.policies}, {"traffic", b.traffic}, {"rules", b.rules}} {
		if b.only != "" && !strings.Contains(","+b.only+",", ","+part.name+",") {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", part.name)
		if err := part.f(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(out, b.rows)
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
