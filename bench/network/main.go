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
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/networktest"
)

type bench struct {
	dsec  string
	only  string
	n     int
	slots int
	lives int
	rows  []measure.Row
}

// main has a network namespace for itself: the node's network is the host's only one, and this machine may have its own.
func main() {
	os.Exit(networktest.Alone(func() error {
		_, err := testkit.DebianBase(context.Background()) // where the machine's network is
		return err
	}, alone))
}

func alone() int {
	b := &bench{}
	out := flag.String("out", "bench/out/network.json", "where the rows go")
	flag.StringVar(&b.only, "only", "", "comma-separated parts to run: link, policy, traffic, rules, names, create, machines, live, leftovers (all)")
	flag.StringVar(&b.dsec, "dsec", "bin/dsec", "the program, with dsec-init beside it")
	flag.IntVar(&b.lives, "lives", 1000, "creations before leftovers are counted")
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
		return 1
	}
	return 0
}

func (b *bench) run(ctx context.Context, out string) error {
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"link", b.links}, {"policy", b.policies}, {"traffic", b.traffic}, {"rules", b.rules},
		{"names", b.names}, {"create", b.creations}, {"machines", b.machines}, {"live", b.live}, {"leftovers", b.leftovers}} {
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
