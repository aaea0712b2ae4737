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
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

type options struct {
	dsec        string
	out         string
	only        string
	n           int
	submissions int
}

// bench is a run.
type bench struct {
	o    options
	rows []measure.Row
	node *testkit.Node
	c    *client.Client
	root string // the base, unpacked, for floors and peers
	work string
}

func main() {
	var o options
	flag.StringVar(&o.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&o.out, "out", "bench/out/fncall.json", "where the rows go")
	flag.StringVar(&o.only, "only", "", "comma-separated parts to run: calls, judge (all)")
	flag.IntVar(&o.n, "n", 400, "runs of each figure; peers a quarter of it")
	flag.IntVar(&o.submissions, "submissions", 1000, "submissions to judge")
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

func (b *bench) run(ctx context.Context) (err error) {
	tar, err := testkit.DebianTree(ctx, testkit.CallPackages...)
	if err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(testkit.Cache(), "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	b.root = filepath.Join(b.work, "root")
	if err := os.Mkdir(b.root, 0o755); err != nil {
		return err
	}
	if err := command(ctx, "tar", "-xf", tar, "-C", b.root); err != nil {
		return err
	}
	if b.node, err = testkit.StartNode(ctx, b.o.dsec, filepath.Join(b.work, "node"), "--opt", "pool=1g", "--opt", "warm=1", "--opt", "fncall=debian"); err != nil {
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
	b.c = b.node.Client
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	_, err = b.c.UploadLayer(ctx, client.Upload{Kind: "base", Name: "debian"}, f, nil)
	f.Close()
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		f    func(context.Context) error
	}{{"judge", b.judge}, {"calls", b.calls}} {
		if b.wants(part.name) {
			fmt.Fprintln(os.Stderr, "measuring", part.name)
			if err := part.f(ctx); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
	}
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(b.o.out, b.rows)
}
