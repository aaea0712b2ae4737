package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
)

func init() { parts = append(parts, part{"burst", burst}) }

const (
	perImage = 5
	atOnce   = 16
	pulls    = 4 // eager transfers at once
)

// task runs one sandbox: created, a real program, stopped.
func (r *remote) task(ctx context.Context, env *dsecv1.Environment, script string) error {
	made, err := r.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: env}})
	if err != nil {
		return err
	}
	err = shell(ctx, r.Node, made[0].GetId(), script)
	return errors.Join(err, stopAll(ctx, r.Node, made))
}

// all runs every image's tasks in a random order, atOnce at a time, each when its image is ready, and returns how long it
// took.
func (r *remote) all(ctx context.Context, scripts []string, ready func(i int) <-chan struct{}) (time.Duration, int, error) {
	var order []int
	for i := range scripts {
		for range perImage {
			order = append(order, i)
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
	start := time.Now()
	turns := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	failures := 0
	for _, i := range order {
		wg.Go(func() {
			if ready != nil {
				<-ready(i)
			}
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := r.task(ctx, &dsecv1.Environment{Base: imageName(i)}, scripts[i]); err != nil {
				mu.Lock()
				failures++
				if first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return time.Since(start), failures, first
}

func imageName(i int) string { return fmt.Sprintf("burst-%02d", i) }

// burst is the paper's first experiment: a burst over many distinct images, read on demand, pulled and unpacked first, or
// all cached.
func burst(ctx context.Context, b *bench) (err error) {
	cache := filepath.Dir(b.work)
	maker, err := newImageMaker(ctx, cache)
	if err != nil {
		return err
	}
	defer maker.close()
	work, err := os.MkdirTemp(b.work, "burst-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	unmount, err := compressed(ctx, work, "s3", 40<<30)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	r, err := b.remote(ctx, work, maker, "--opt", "pool=4g", "--opt", "warm=16", "--opt", "cache=16g")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var scripts []string
	var packed, unpacked int64
	for i := range b.images {
		fmt.Fprintf(os.Stderr, "\rimage %d of %d", i+1, b.images)
		image, err := maker.image(i)
		if err != nil {
			return err
		}
		packed, unpacked = packed+image.packed, unpacked+image.unpacked
		body := image.open()
		_, err = r.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: imageName(i)}, body, nil)
		if err = errors.Join(err, body.Close()); err != nil {
			return err
		}
		scripts = append(scripts, "python3 -c '"+program(maker.draw(i))+"'")
	}
	fmt.Fprintln(os.Stderr)
	if err := r.forget(ctx); err != nil {
		return err
	}
	r.slow.on.Store(true)
	keep := func(name string, took time.Duration, failures int, first error, to ...string) {
		row := measure.FromValues(name, "s", []float64{took.Seconds()}, failures)
		row.N = b.images * perImage
		if first != nil {
			row.Note = "first failure: " + first.Error()
		}
		b.add(row, to...)
	}
	r.slow.bytes.Store(0)
	var use [3]usage
	if use[0], err = r.usageNow(ctx); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "images made; the tasks, on demand")
	took, failures, first := r.all(ctx, scripts, nil)
	if use[1], err = r.usageNow(ctx); err != nil {
		return err
	}
	fetched := r.slow.bytes.Load()
	written := treeBytes(filepath.Join(r.state, "lazy"))
	keep("burst_on_demand", took, failures, first)
	b.partsOf("burst_on_demand", use[0], use[1])
	fmt.Fprintln(os.Stderr, "the tasks, cached")
	before := use[1]
	took, failures, first = r.all(ctx, scripts, nil)
	if use[2], err = r.usageNow(ctx); err != nil {
		return err
	}
	keep("burst_cached", took, failures, first)
	b.partsOf("burst_cached", before, use[2])
	if err := b.floor(ctx, r, fetched, use); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "the tasks, eager")
	e := &eager{r: r, dir: filepath.Join(work, "eager"), ready: make([]chan struct{}, b.images)}
	took, moved, failures, first := e.run(ctx, scripts)
	keep("burst_eager", took, failures, first, "burst_on_demand")
	keep("burst_eager_transfer", moved, 0, nil, "burst_cached")
	b.add(measure.FromValues("burst_eager_removal", "s", []float64{e.removal.Seconds()}, 0))
	for i := range b.rows {
		if b.rows[i].Name == "burst_on_demand" {
			for _, o := range b.rows {
				if o.Name == "burst_cached" || o.Name == "burst_eager" {
					b.rows[i].Ratio(o)
				}
			}
		}
	}
	b.add(mib("burst_eager_written", e.written))
	b.add(mib("burst_on_demand_written", written), "burst_eager_written")
	b.add(mib("burst_images_unpacked", unpacked))
	b.add(mib("burst_images_packed", packed))
	b.add(mib("burst_on_demand_fetched", fetched), "burst_images_unpacked")
	return nil
}

func mib(name string, n int64) measure.Row {
	return measure.FromValues(name, "MiB", []float64{float64(n) / (1 << 20)}, 0)
}

// floor says how fast the burst could be on demand at best, with a store of this speed and with all of it on these processors: what
// the store needs to send the bytes, or what the processors need for the tasks and for moving them, whichever is more.
func (b *bench) floor(ctx context.Context, r *remote, fetched int64, use [3]usage) error {
	cached := use[2].machine.Busy - use[1].machine.Busy - (use[2].store - use[1].store)
	moving := use[1].store - use[0].store + use[1].blobd - use[0].blobd
	send := float64(fetched) / storeRate
	row := func(name string, seconds float64, note string) {
		x := measure.FromValues(name, "s", []float64{seconds}, 0)
		x.Note = note
		b.add(x, "burst_cached")
	}
	row("burst_floor_store", send, fmt.Sprintf("%d MiB at the store's %.0f MB/s", fetched>>20, storeRate/1e6))
	row("burst_floor_cpu", (cached+moving)/float64(runtime.NumCPU()), "the tasks' own, as cached, and the store's and blobd's for moving, on all processors without a pause")
	row("burst_floor_cpu_elsewhere", (cached+use[1].blobd-use[0].blobd)/float64(runtime.NumCPU()), "the same with the store on another machine")
	s := use[1].blobds
	x := measure.FromValues("burst_requests", "", []float64{float64(s.Requests - use[0].blobds.Requests)}, 0)
	x.Note = fmt.Sprintf("of %.0f KiB; %d chunks were asked for before anybody wanted them, %d were on their way when somebody else did, %d were read from the node's disk; %d reads of the kernel's, of %.0f KiB",
		float64(s.FetchedBytes)/1024/float64(max(1, s.Requests)), s.Ahead, s.Coalesced, s.Cache.Hits, s.Reads, float64(s.ReadBytes)/1024/float64(max(1, s.Reads)))
	b.add(x)
	data, read, chunks, err := traces(ctx, filepath.Join(r.state, "run", "blobd.sock"))
	if err != nil {
		return err
	}
	share := measure.FromValues("burst_share_read_python", "%", []float64{100 * float64(read) / float64(data)}, 0)
	share.Note = fmt.Sprintf("of the images' data, the kernel's readahead included; in chunks %.1f %%; fetched %.1f %%; the paper: 4.2 to 13.3 %%, by language",
		100*float64(chunks)/float64(data), 100*float64(fetched)/float64(data))
	b.add(share)
	return nil
}

// program is the task: it imports what needs little compiling (wheels bring no bytecode), reads the sources of the other packages,
// and computes.
func program(packages []string) string {
	light := map[string]string{"numpy": "numpy", "scipy": "scipy", "django": "django", "pillow": "PIL.Image", "lxml": "lxml.etree", "babel": "babel"}
	folders := map[string]string{"scikit-image": "skimage"}
	imports, read := []string{"glob", "sys"}, []string{}
	for _, p := range packages {
		if name := light[p]; name != "" {
			imports = append(imports, name)
			continue
		}
		if f := folders[p]; f != "" {
			p = f
		}
		read = append(read, "/"+pythonPackages+p+"/**/__init__.py")
	}
	return fmt.Sprintf("import %s; sys.dont_write_bytecode = True; n = sum(len(open(f, \"rb\").read()) for p in %q.split() for f in glob.glob(p, recursive=True)); "+
		"a = numpy.random.rand(300, 300); s = sum(float((a @ a).trace()) for _ in range(10)); print(n, s > 0)", strings.Join(imports, ", "), strings.Join(read, " "))
}

// eager pulls each image whole and unpacks it on the node's disk before its sandboxes start. They then run on cached layers,
// which costs it nothing more. What was unpacked is removed beside it, so that it fits on the disk.
type eager struct {
	r       *remote
	dir     string
	ready   []chan struct{}
	written int64
	removal time.Duration // what the removing took, of which a part lies in the time that is measured
}

// maxTrees is how many unpacked images are on the disk at a time, beside those that are being unpacked.
const maxTrees = 2

func (e *eager) run(ctx context.Context, scripts []string) (took, moved time.Duration, failures int, first error) {
	for i := range e.ready {
		e.ready[i] = make(chan struct{})
	}
	start := time.Now()
	next := make(chan int, len(e.ready))
	for i := range e.ready {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	old := make(chan string, maxTrees)
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		for dir := range old {
			e.written += treeBytes(dir)
			start := time.Now()
			err := os.RemoveAll(dir)
			e.removal += time.Since(start)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}()
	for range pulls {
		wg.Go(func() {
			for i := range next {
				err := e.pull(ctx, i)
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				close(e.ready[i])
				old <- e.tree(i)
			}
		})
	}
	done := make(chan time.Duration, 1)
	go func() {
		wg.Wait()
		done <- time.Since(start)
	}()
	took, failures, first = e.r.all(ctx, scripts, func(i int) <-chan struct{} { return e.ready[i] })
	moved = <-done
	close(old)
	<-removed
	return took, moved, failures, errors.Join(first, errors.Join(errs...))
}

func (e *eager) tree(i int) string { return filepath.Join(e.dir, imageName(i)) }

// pull transfers and unpacks an image.
func (e *eager) pull(ctx context.Context, i int) error {
	dir := e.tree(i)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/files/%d", e.r.slow.URL, i), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	cmd := exec.CommandContext(ctx, "tar", "-xzf", "-", "-C", dir, "--ignore-zeros")
	cmd.Stdin = io.Reader(resp.Body)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack: %w: %s", err, out)
	}
	return nil
}

// treeBytes is what the files below dir take on disk.
func treeBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if st, err := d.Info(); err == nil {
			n += diskBytes(st)
		}
		return nil
	})
	return n
}
