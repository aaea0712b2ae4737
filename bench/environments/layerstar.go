package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
)

func init() { parts = append(parts, part{"layers_vs_tar", layersVsTar}) }

const (
	tarSandboxes = 24 // of each kind
	tarAtOnce    = 8
)

// What is brought to each sandbox besides its base: a workspace with what a task depends on, and two toolkits.
var brought = []struct{ kind, name, wheel string }{
	{"workspace", "work", "numpy"}, {"toolkit", "tools", "sympy"}, {"toolkit", "agent", "django"},
}

// tarTask uses all three.
const tarTask = "import glob, numpy, django; n = sum(len(open(f, \"rb\").read()) for f in glob.glob(\"/" + pythonPackages + "sympy/core/*.py\")); " +
	"a = numpy.random.rand(200, 200); print(n, (a @ a).trace() > 0)"

// layersVsTar is the paper's second experiment: workspace and toolkits as layers beside archives that are unpacked in each
// sandbox. Both come from the throttled store; the base is on the node.
func layersVsTar(ctx context.Context, b *bench) (err error) {
	maker, err := newImageMaker(ctx, filepath.Dir(b.work))
	if err != nil {
		return err
	}
	defer maker.close()
	work, err := os.MkdirTemp(b.work, "tar-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// The store gives the pieces as they are, by name.
	r, err := b.remote(ctx, work, http.FileServer(http.Dir(maker.dir)), "--opt", "pool=8g", "--opt", "warm=8")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	upload := func(kind, name, part string) error {
		p, err := maker.part(part)
		if err != nil {
			return err
		}
		body := (&image{pieces: []piece{p}}).open()
		_, err = r.Client.UploadLayer(ctx, client.Upload{Kind: kind, Name: name}, body, nil)
		return errors.Join(err, body.Close())
	}
	if err := upload("base", "debian", "debian"); err != nil {
		return err
	}
	for _, l := range brought {
		if err := upload(l.kind, l.name, l.wheel); err != nil {
			return err
		}
	}
	full := &dsecv1.Environment{Base: "debian", Workspace: "work", Toolkits: []string{"tools", "agent"}}
	if err := r.forget(ctx); err != nil {
		return err
	}
	// The base is warm in both.
	if err := r.task(ctx, &dsecv1.Environment{Base: "debian"}, "python3 -c 'import json, decimal, unittest'"); err != nil {
		return err
	}
	r.slow.on.Store(true)
	script := "python3 -c '" + tarTask + "'"
	lazyDir := filepath.Join(r.state, "lazy")
	before := treeBytes(lazyDir)
	layers, err := r.many(ctx, func(ctx context.Context, id string) error { return shell(ctx, r.Node, id, script) }, full)
	if err != nil {
		return err
	}
	layers.written += treeBytes(lazyDir) - before
	tars, err := r.many(ctx, func(ctx context.Context, id string) error {
		for _, l := range brought {
			if err := r.unpack(ctx, id, l.wheel); err != nil {
				return err
			}
		}
		return shell(ctx, r.Node, id, script)
	}, &dsecv1.Environment{Base: "debian"})
	if err != nil {
		return err
	}
	row := measure.FromDurations("tar_ready_and_run", tars.times, 0)
	row.Note = "per sandbox: created, three archives unpacked, its task"
	b.add(row)
	row = measure.FromDurations("layers_ready_and_run", layers.times, 0)
	row.Note = "per sandbox: created with three layers, its task; the first of them bring the layers"
	b.add(row, "tar_ready_and_run")
	value := func(name, unit string, v float64) measure.Row { return measure.FromValues(name, unit, []float64{v}, 0) }
	b.add(value("tar_all", "s", tars.took.Seconds()))
	b.add(value("layers_all", "s", layers.took.Seconds()), "tar_all")
	b.add(value("tar_written", "MiB", float64(tars.written)/(1<<20)))
	b.add(value("layers_written", "MiB", float64(layers.written)/(1<<20)), "tar_written")
	return nil
}

// group is what many sandboxes took.
type group struct {
	times   []time.Duration // of each, from its creation to its result
	took    time.Duration   // of all
	written int64           // bytes of their own disks
}

// many makes tarSandboxes sandboxes, tarAtOnce at a time, does with each what f does, and stops it.
func (r *remote) many(ctx context.Context, f func(ctx context.Context, id string) error, env *dsecv1.Environment) (g group, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan struct{}, tarAtOnce)
	start := time.Now()
	for range tarSandboxes {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			took, own, one := r.one(ctx, f, env)
			mu.Lock()
			defer mu.Unlock()
			g.times, g.written = append(g.times, took), g.written+own
			if err == nil {
				err = one // the others will say the same
			}
		})
	}
	wg.Wait()
	g.took = time.Since(start)
	return g, err
}

func (r *remote) one(ctx context.Context, f func(ctx context.Context, id string) error, env *dsecv1.Environment) (took time.Duration, own int64, err error) {
	start := time.Now()
	made, err := r.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: env}})
	if err != nil {
		return 0, 0, err
	}
	err = f(ctx, made[0].GetId())
	took = time.Since(start)
	// The pool charges what was written once it is on disk.
	err = errors.Join(err, shell(ctx, r.Node, made[0].GetId(), "sync"))
	kib, oerr := ownBytes(ctx, r.Node, made)
	if len(kib) > 0 {
		own = int64(kib[0] * 1024)
	}
	return took, own, errors.Join(err, oerr, stopAll(ctx, r.Node, made))
}

// unpack brings an archive from the store into a sandbox and unpacks it there.
func (r *remote) unpack(ctx context.Context, id, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.slow.URL+"/files/"+name+".tar.gz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("archive %s: %s", name, resp.Status)
	}
	cmd, err := r.Client.Run(ctx, client.Run{SandboxID: id, Stdin: resp.Body, Spec: &dsecv1.CommandSpec{Argv: []string{"tar", "-xzf", "-", "-C", "/"}}})
	if err != nil {
		return err
	}
	if res := cmd.GetResult(); res.GetExitCode() != 0 {
		return fmt.Errorf("unpack %s: exit code %d, %s", name, res.GetExitCode(), res.GetEnd().GetMessage())
	}
	return nil
}
