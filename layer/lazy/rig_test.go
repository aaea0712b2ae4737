package lazy_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/layer/store/memory"
)

// rig is a node's part of lazy loading: a holder, a server that can be stopped and started, a node that mounts.
type rig struct {
	t      *testing.T
	dir    string // short: sockets lie in it
	o      lazy.Options
	store  *layertest.Faulty
	hold   *hold.Client
	server *lazy.Server
	stop   func()
	ends   []func() // first to last in, last out
}

// timeout is the store's in these tests.
const timeout = 2 * time.Second

func newRig(t *testing.T, edit func(*lazy.Options)) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if err := fuse.Probe(); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "lz-") // EROFS takes no files of a tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir, store: &layertest.Faulty{Store: &memory.Store{}}}
	r.o = lazy.Options{Dir: filepath.Join(dir, "lazy"), Timeout: timeout, Faults: lazy.NewFaults(r.faultFile()), MinFree: 1, Cache: 64 << 20, Log: logger(t)}
	if edit != nil {
		edit(&r.o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- hold.ServeWith(ctx, filepath.Join(dir, "hold"), hold.Options{Lapsed: lazy.Lapsed(r.o.Faults, r.o.Log)})
	}()
	r.hold = hold.NewClient(filepath.Join(dir, "hold"))
	t.Cleanup(func() {
		for i := len(r.ends) - 1; i >= 0; i-- {
			r.ends[i]()
		}
		r.halt()
		r.hold.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) faultFile() string { return filepath.Join(r.dir, "faults") }

// logger writes to the test's log.
func logger(t *testing.T) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() { w.mu.Lock(); w.done = true; w.mu.Unlock() })
	return slog.New(slog.NewTextHandler(w, nil))
}

type testWriter struct {
	t    *testing.T
	mu   sync.Mutex
	done bool
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		w.t.Log(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

// start starts a server.
func (r *rig) start() {
	r.t.Helper()
	s, err := lazy.NewServer(r.store, r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, r.hold) }()
	r.server = s
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("serve: %v", err)
		}
		s.Close()
	}
}

// halt stops the server; what it had taken waits for the next.
func (r *rig) halt() {
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

// publish puts a layer with one file of size bytes into the store.
func (r *rig) publish(seed uint64, size int) *layertest.Sample {
	r.t.Helper()
	s := layertest.NewSample(r.t, seed, size)
	if _, err := r.store.Put(r.t.Context(), s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(s.Data)); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// mount mounts a layer as a backend does, and returns the directory.
func (r *rig) mount(d layer.Digest) string {
	r.t.Helper()
	l, err := r.server.Attach(r.t.Context(), d)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := heldMount(r.hold)
	if err != nil {
		r.t.Fatal(err)
	}
	defer m.Close()
	at, err := os.MkdirTemp(r.dir, "m-")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := linux.MountErofs(l.MetaPath, filePath(m, d), at, lazy.Readahead); err != nil {
		r.t.Fatal(err)
	}
	r.ends = append(r.ends, func() {
		if err := linux.Unmount(at); err != nil {
			r.t.Error(err)
		}
	})
	return at
}

func heldMount(h *hold.Client) (*os.File, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m, err := h.Get("lazy/mount")
		if err == nil || time.Now().After(end) {
			return m, err
		}
	}
}

func filePath(m *os.File, d layer.Digest) string {
	return "/proc/self/fd/" + itoa(int(m.Fd())) + "/" + d.Hex()
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// dropPages makes the kernel forget what it read of a mounted layer's file.
func (r *rig) dropPages(d layer.Digest, file string) {
	r.t.Helper()
	m, err := heldMount(r.hold)
	if err != nil {
		r.t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(linux.ForgetPages(file), linux.ForgetPages(filePath(m, d))); err != nil {
		r.t.Fatal(err)
	}
}

// same reads the whole file and compares.
func same(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: other content", path)
	}
}

// readAt reads a piece of a file.
func readAt(path string, off int64, size int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, size)
	n, err := f.ReadAt(b, off)
	return b[:n], err
}

// wantEIO checks that a read failed as a store fault does.
func wantEIO(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want EIO", err)
	}
}
