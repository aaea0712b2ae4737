package main

import (
	"bytes"
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
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

func init() { parts = append(parts, part{"burst", burst}, part{"first", firstCommand}) }

const (
	storeRate  = 100e6 // bytes a second
	storeDelay = 2 * time.Millisecond
	images     = 40
	perImage   = 5
	atOnce     = 16
	pulls      = 4 // eager transfers at once
)

// remote is a node whose layers lie in a throttled S3 store.
type remote struct {
	*testkit.Node
	b     *bench
	state string
	store *testkit.S3
	slow  *throttle
	args  []string
}

func (b *bench) remote(ctx context.Context, work string, opts ...string) (*remote, error) {
	r := &remote{b: b, state: filepath.Join(work, "node")}
	var err error
	if r.store, err = testkit.StartS3(ctx, filepath.Join(work, "s3"), "layers"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(work, "files"), 0o700); err != nil {
		return nil, errors.Join(err, r.store.Stop())
	}
	if r.slow, err = newThrottle(r.store.Endpoint, filepath.Join(work, "files"), storeRate, storeDelay); err != nil {
		return nil, errors.Join(err, r.store.Stop())
	}
	keys := filepath.Join(work, "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", r.store.Access, r.store.Secret)
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		return nil, err
	}
	r.args = append([]string{"--opt", fmt.Sprintf("store=s3://layers?endpoint=%s&credentials=%s", r.slow.URL, keys)}, opts...)
	return r, r.up(ctx)
}

func (r *remote) up(ctx context.Context) (err error) {
	r.Node, err = testkit.StartNode(ctx, r.b.dsec, r.state, r.args...)
	return err
}

// forget starts the node again without anything of any layer.
func (r *remote) forget(ctx context.Context) error {
	if _, err := r.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.state, "lazy")); err != nil {
		return err
	}
	return r.up(ctx)
}

func (r *remote) close() error {
	left, err := r.Stop()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %v", left))
	}
	r.slow.close()
	return errors.Join(err, r.store.Stop())
}

// task runs one sandbox of an image: created, a real program, stopped.
func (r *remote) task(ctx context.Context, image, script string) error {
	made, err := r.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: image}}})
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
			if err := r.task(ctx, imageName(i), scripts[i]); err != nil {
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
	work, err := os.MkdirTemp(b.work, "burst-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r, err := b.remote(ctx, work, "--opt", "pool=4g", "--opt", "warm=16", "--opt", "cache=16g")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var scripts []string
	var packed, unpacked int64
	for i := range images {
		fmt.Fprintf(os.Stderr, "\rimage %d of %d", i+1, images)
		gz := filepath.Join(work, "files", imageName(i)+".tar.gz")
		size, err := maker.gzipped(gz, i)
		if err != nil {
			return err
		}
		st, err := os.Stat(gz)
		if err != nil {
			return err
		}
		packed, unpacked = packed+st.Size(), unpacked+size
		f, err := os.Open(gz)
		if err != nil {
			return err
		}
		_, err = r.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: imageName(i)}, f, nil)
		f.Close()
		if err != nil {
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
		row.N = images * perImage
		if first != nil {
			row.Note = "first failure: " + first.Error()
		}
		b.add(row, to...)
	}
	r.slow.bytes.Store(0)
	took, failures, first := r.all(ctx, scripts, nil)
	fetched := r.slow.bytes.Load()
	written := treeBytes(filepath.Join(r.state, "lazy"))
	keep("burst_on_demand", took, failures, first)
	took, failures, first = r.all(ctx, scripts, nil)
	keep("burst_cached", took, failures, first)
	e := &eager{r: r, dir: filepath.Join(work, "eager"), ready: make([]chan struct{}, images)}
	took, moved, failures, first := e.run(ctx, scripts)
	keep("burst_eager", took, failures, first, "burst_on_demand")
	keep("burst_eager_transfer", moved, 0, nil, "burst_cached")
	for i := range b.rows {
		if b.rows[i].Name == "burst_on_demand" {
			for _, o := range b.rows {
				if o.Name == "burst_cached" || o.Name == "burst_eager" {
					b.rows[i].Ratio(o)
				}
			}
		}
	}
	mib := func(name string, n int64) measure.Row {
		return measure.FromValues(name, "MiB", []float64{float64(n) / (1 << 20)}, 0)
	}
	b.add(mib("burst_eager_written", e.written))
	b.add(mib("burst_on_demand_written", written), "burst_eager_written")
	b.add(mib("burst_images_unpacked", unpacked))
	b.add(mib("burst_images_packed", packed))
	b.add(mib("burst_on_demand_fetched", fetched), "burst_images_unpacked")
	return nil
}

// program is the task: it loads what its image has, and computes.
func program(packages []string) string {
	names := map[string]string{"pillow": "PIL", "scikit-image": "scipy.ndimage", "scipy": "scipy.linalg"}
	var imports []string
	for _, p := range packages {
		if n := names[p]; n != "" {
			p = n
		}
		switch p {
		case "pandas", "matplotlib": // need others, which the image may lack
			p = "numpy.fft"
		}
		imports = append(imports, p)
	}
	return "import " + strings.Join(imports, ", ") + "; a = numpy.random.rand(300, 300); s = sum(float((a @ a).trace()) for _ in range(40)); print(s > 0)"
}

// eager pulls each image whole and unpacks it on the node's disk before its sandboxes start. They then run on cached layers,
// which costs it nothing more.
type eager struct {
	r       *remote
	dir     string
	ready   []chan struct{}
	written int64
}

func (e *eager) run(ctx context.Context, scripts []string) (took, moved time.Duration, failures int, first error) {
	for i := range e.ready {
		e.ready[i] = make(chan struct{})
	}
	start := time.Now()
	next := make(chan int, images)
	for i := range images {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	errs := make([]error, images)
	for range pulls {
		wg.Go(func() {
			for i := range next {
				errs[i] = e.pull(ctx, i)
				close(e.ready[i])
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
	e.written = treeBytes(e.dir)
	return took, moved, failures, errors.Join(first, errors.Join(errs...))
}

// pull transfers and unpacks an image.
func (e *eager) pull(ctx context.Context, i int) error {
	dir := filepath.Join(e.dir, imageName(i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.r.slow.URL+"/files/"+imageName(i)+".tar.gz", nil)
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

// firstCommand is the time to the first result of an image that the node has never seen, by its size.
func firstCommand(ctx context.Context, b *bench) (err error) {
	work, err := os.MkdirTemp(b.work, "first-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	debian, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	r, err := b.remote(ctx, work, "--opt", "pool=1g", "--opt", "warm=8")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	sizes := []struct {
		name         string
		files, bytes int
	}{{"10mb", 400, 10 << 20}, {"1gb", 40_000, 1 << 30}}
	for _, s := range sizes {
		image, err := smallImage(debian, s.files, s.bytes)
		if err != nil {
			return err
		}
		if _, err := r.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "first-" + s.name}, bytes.NewReader(image), nil); err != nil {
			return err
		}
	}
	times := map[string][]float64{}
	for range max(b.n/3, 3) {
		for _, s := range sizes {
			r.slow.on.Store(false)
			if err := r.forget(ctx); err != nil {
				return err
			}
			r.slow.on.Store(true)
			start := time.Now()
			made, err := r.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "first-" + s.name}}})
			if err != nil {
				return err
			}
			if _, err := r.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: made[0].GetId(), OperationId: client.NewOperationID(), Command: &dsecv1.CommandSpec{Argv: []string{"true"}}}); err != nil {
				return err
			}
			times[s.name] = append(times[s.name], ms(time.Since(start)))
			if err := stopAll(ctx, r.Node, made); err != nil {
				return err
			}
		}
	}
	b.add(measure.FromValues("first_command_10mb", "ms", times["10mb"], 0))
	b.add(measure.FromValues("first_command_1gb", "ms", times["1gb"], 0), "first_command_10mb")
	return nil
}
