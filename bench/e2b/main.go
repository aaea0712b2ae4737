package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// template is the environment that all sandboxes are made of.
const template = "base"

type options struct {
	dsec, out  string
	n, clients int
	version    string // of the Python package
}

// bench is a run.
type bench struct {
	o    options
	rows []measure.Row
	node *testkit.Node
	own  *client.Client
	door *door
}

func main() {
	var o options
	flag.StringVar(&o.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&o.out, "out", "bench/out/e2b.json", "where the rows go")
	flag.IntVar(&o.n, "n", 200, "runs of each figure")
	flag.IntVar(&o.clients, "clients", 100, "clients of the package at once; 0 leaves them out")
	flag.StringVar(&o.version, "package", "2.63.0", "version of the package e2b of PyPI")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	b := &bench{o: o}
	err := b.run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	work, err := os.MkdirTemp(testkit.Cache(), "bench-e2b-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := b.start(ctx, filepath.Join(work, "node")); err != nil {
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
	if err := b.overhead(ctx); err != nil {
		return err
	}
	if b.o.clients > 0 {
		if err := b.many(ctx); err != nil {
			return err
		}
	}
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(b.o.out, b.rows)
}

// start starts a node with a template, and finds its door.
func (b *bench) start(ctx context.Context, state string) error {
	base, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	if b.node, err = testkit.StartNode(ctx, b.o.dsec, state, "--opt", "pool=4g", "--opt", "warm=16", "--opt", "network=off"); err != nil {
		return err
	}
	if err := b.prepare(ctx, state, base); err != nil {
		_, _ = b.node.Stop()
		return err
	}
	return nil
}

func (b *bench) prepare(ctx context.Context, state, base string) error {
	b.own = b.node.Client
	f, err := os.Open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := b.own.UploadLayer(ctx, client.Upload{Kind: "base", Name: "debian"}, f, nil); err != nil {
		return err
	}
	_, err = b.own.Environments.CreateEnvironment(ctx, &dsecv1.CreateEnvironmentRequest{Environment: &dsecv1.NamedEnvironment{
		Name: template, Stack: &dsecv1.Environment{Base: "debian"},
	}})
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(state, "run", "up.json"))
	if err != nil {
		return err
	}
	var up struct {
		E2BURL string `json:"e2bUrl"`
	}
	if err := json.Unmarshal(raw, &up); err != nil || up.E2BURL == "" {
		return fmt.Errorf("the node serves no door for E2B clients: %v, %s", err, raw)
	}
	key, err := b.node.Run(ctx, "key", "create", "--e2b", "--state", state)
	if err != nil {
		return err
	}
	b.door = newDoor(up.E2BURL, strings.TrimSpace(key))
	return nil
}
