package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	dsec  string // the binary
	cache string
	state string
	n     int
	seed  int64
	json  bool
}

// longest is how long all of it may take. It bounds what nothing else does: commands are bounded by their progress.
const longest = 6 * time.Hour

func main() {
	var o options
	cache := os.Getenv("DSEC_CACHE")
	if cache == "" {
		cache = "/var/cache/dsec"
	}
	flag.StringVar(&o.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&o.cache, "cache", cache, "where what is built is kept for the next run")
	flag.StringVar(&o.state, "state", "", "state directory of the node (default CACHE/demo)")
	flag.IntVar(&o.n, "n", 32, "rollouts, all at once")
	flag.Int64Var(&o.seed, "seed", 1, "seed of the first mutation")
	flag.BoolVar(&o.json, "json", false, "print the result as JSON")
	flag.Parse()
	if o.state == "" {
		o.state = filepath.Join(o.cache, "demo")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, longest)
	err := run(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if os.Getuid() != 0 {
		return fmt.Errorf("root is needed: a node makes namespaces, mounts and control groups")
	}
	start := time.Now()
	tar, err := debianBase(ctx)
	if err != nil {
		return err
	}
	n, err := startNode(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		left, serr := n.Stop()
		if err == nil {
			err = serr
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %v", left)
		}
		if err == nil {
			fmt.Fprintf(os.Stderr, "nothing was left behind; all of it took %.1f s\n", time.Since(start).Seconds())
		}
	}()
	if err := importAll(ctx, o, n.Client, tar); err != nil {
		return err
	}
	results, err := rollouts(ctx, o, n.Client)
	if err != nil {
		return err
	}
	return report(o, results)
}

// step prints what is being done and returns a function that prints how long it took.
func step(format string, args ...any) func(note string) {
	fmt.Fprintf(os.Stderr, "%-52s", fmt.Sprintf(format, args...))
	start := time.Now()
	return func(note string) {
		if note != "" {
			note = "  " + note
		}
		fmt.Fprintf(os.Stderr, " %6.1f s%s\n", time.Since(start).Seconds(), note)
	}
}
