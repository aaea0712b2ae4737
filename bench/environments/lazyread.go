package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/tree"
)

func init() {
	parts = append(parts, part{"lazy_read", func(ctx context.Context, b *bench) error {
		rows, err := lazyRead(ctx)
		for _, r := range rows {
			b.add(r)
		}
		return err
	}})
	if dir := os.Getenv(serveEnv); dir != "" {
		fmt.Fprintln(os.Stderr, lazyServe(context.Background(), dir))
		os.Exit(1)
	}
}

// serveEnv makes this program the server of layers in the directory that it names.
const serveEnv = "DSEC_BENCH_SERVE"

const (
	lazySize = 192 << 20 // of the file that is read, bytes
	lazyRuns = 5
)

// lazyRead reads one file from its beginning to its end: as a file of the node's disk, from a layer there, and from a
// layer that is read on demand.
func lazyRead(ctx context.Context) (rows []measure.Row, err error) {
	dir, err := os.MkdirTemp("/var/tmp", "lzb-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r, err := newLazyRig(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	drop := func(paths ...string) error {
		for _, p := range paths {
			if err := linux.ForgetPages(p); err != nil {
				return err
			}
		}
		return nil
	}
	dropLazy := func() error {
		chunks, err := filepath.Glob(filepath.Join(dir, "lazy", "chunks", "??", "*"))
		if err != nil {
			return err
		}
		return drop(append(chunks, r.lazy, r.device)...)
	}
	nothing := func() error { return nil }
	// In turns, because the machine is shared: what is compared runs in the same seconds.
	kinds := []struct {
		name, path, than, note string
		before                 func() error
	}{
		{"lazy_read_file_cold", r.plain, "", "the file on the node's disk, page cache cold", func() error { return drop(r.plain) }},
		{"lazy_read_layer_cold", r.direct, "lazy_read_file_cold", "a layer on the node's disk, page cache cold", func() error { return drop(r.direct, r.data) }},
		{"lazy_read_chunks_cold", r.lazy, "lazy_read_file_cold", "on demand, chunk cache warm, page cache cold; goal 0.5", dropLazy},
		{"lazy_read_file_warm", r.plain, "", "the file on the node's disk, page cache warm", nothing},
		{"lazy_read_pages_warm", r.lazy, "lazy_read_file_warm", "on demand, page cache warm; goal 0.95", nothing},
	}
	took := make([][]float64, len(kinds))
	first, err := timeRead(r.lazy)
	if err != nil {
		return nil, err
	}
	for range lazyRuns {
		for i, k := range kinds {
			if err := k.before(); err != nil {
				return nil, err
			}
			if k.name == "lazy_read_file_warm" { // by what comes before it, the layer's pages are warm too
				if _, err := timeRead(k.path); err != nil {
					return nil, err
				}
			}
			v, err := timeRead(k.path)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], v)
		}
	}
	row := measure.FromValues("lazy_read_nothing", "MB/s", []float64{first}, 0)
	row.Note = "on demand, nothing cached, the store a folder of the same disk"
	rows = append(rows, row)
	byName := map[string]measure.Row{}
	for i, k := range kinds {
		row := measure.FromValues(k.name, "MB/s", took[i], 0)
		row.Note = k.note
		if k.than != "" {
			row.Ratio(byName[k.than])
		}
		byName[k.name] = row
		rows = append(rows, row)
	}
	return rows, ctx.Err()
}

// timeRead reads a file in pieces of 1 MiB and returns MB/s.
func timeRead(path string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	start, n := time.Now(), 0
	for {
		k, err := f.Read(buf)
		n += k
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if n != lazySize {
		return 0, fmt.Errorf("%s has %d bytes", path, n)
	}
	return float64(n) / 1e6 / time.Since(start).Seconds(), nil
}

// lazyRig is a file, a layer with it, and a server of that layer in a process of its own.
type lazyRig struct {
	plain        string // the file on disk
	data         string // the layer's data in the store
	direct, lazy string // the file in the mounted layer
	device       string // the layer's data as the server gives it
	closers      []func() error
}

func (r *lazyRig) close() (err error) {
	for i := len(r.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closers[i]())
	}
	return err
}

func newLazyRig(ctx context.Context, dir string) (r *lazyRig, err error) {
	r = &lazyRig{plain: filepath.Join(dir, "plain")}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	store, err := posix.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		return r, err
	}
	d, err := publishRandom(ctx, store, r.plain)
	if err != nil {
		return r, err
	}
	hctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	held := make(chan error, 1)
	// Should the server die, reads fail instead of waiting for another.
	lapsed := lazy.Lapsed(lazy.NewFaults(filepath.Join(dir, "faults")), slog.New(slog.DiscardHandler))
	go func() { held <- hold.ServeWith(hctx, filepath.Join(dir, "hold"), hold.Options{Lapsed: lapsed}) }()
	r.closers = append(r.closers, func() error { stop(); return <-held })
	exe, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serveEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return r, err
	}
	r.closers = append(r.closers, func() error { err := cmd.Process.Kill(); _ = cmd.Wait(); return err })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return r, errors.New("the server does not start")
	}
	h := hold.NewClient(filepath.Join(dir, "hold"))
	mount, err := h.Get("lazy/mount")
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		mount, err = h.Get("lazy/mount")
	}
	if err != nil {
		return r, err
	}
	r.closers = append(r.closers, mount.Close)
	at := filepath.Join(dir, "store", "layers", d.Hex())
	r.data, r.device = filepath.Join(at, "data"), fmt.Sprintf("/proc/self/fd/%d/%s", mount.Fd(), d.Hex())
	for _, m := range []struct {
		name, data string
		readahead  int
		to         *string
	}{{"direct", r.data, 0, &r.direct}, {"lazy", r.device, lazy.Readahead, &r.lazy}} {
		on := filepath.Join(dir, m.name+".mnt")
		if err := os.Mkdir(on, 0o700); err != nil {
			return r, err
		}
		if err := linux.MountErofs(filepath.Join(at, "meta.erofs"), m.data, on, m.readahead); err != nil {
			return r, err
		}
		r.closers = append(r.closers, func() error { return linux.Unmount(on) })
		*m.to = filepath.Join(on, "file")
	}
	return r, nil
}

// publishRandom makes a file and a layer that holds the same.
func publishRandom(ctx context.Context, store *posix.Store, plain string) (layer.Digest, error) {
	f, err := os.Create(plain)
	if err != nil {
		return "", err
	}
	defer f.Close()
	rng := rand.NewChaCha8([32]byte{1})
	if _, err := io.CopyN(f, rng, lazySize); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return testkit.Import(ctx, store, tree.Options{}, func(b *tree.Builder) error {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			err := tw.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: lazySize})
			if err == nil {
				_, err = io.Copy(tw, io.NewSectionReader(f, 0, lazySize))
			}
			w.CloseWithError(errors.Join(err, tw.Close()))
		}()
		return b.AddTar(ctx, r, tree.Plain)
	})
}

// lazyServe is the server's process.
func lazyServe(ctx context.Context, dir string) error {
	store, err := posix.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		return err
	}
	s, err := lazy.NewServer(store, lazy.Options{Dir: filepath.Join(dir, "lazy")})
	if err != nil {
		return err
	}
	defer s.Close()
	all, err := store.List(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if _, err := s.Attach(ctx, d); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return s.Serve(ctx, hold.NewClient(filepath.Join(dir, "hold")))
}
