package lazy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/layer/store/posix"
)

const childEnv = "DSEC_TEST_LAZY_DIR"

// slowly is a store that takes its time, so that a kill finds requests under way.
type slowly struct{ layer.Store }

func (s slowly) ReadData(ctx context.Context, d layer.Digest, p []byte, off int64) error {
	time.Sleep(20 * time.Millisecond)
	return s.Store.ReadData(ctx, d, p, off)
}

// TestServeForever is the server that the tests below kill.
func TestServeForever(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("only as a child")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	store, err := posix.Open(filepath.Join(dir, "store"), log)
	if err != nil {
		t.Fatal(err)
	}
	s, err := lazy.NewServer(slowly{store}, lazy.Options{Dir: filepath.Join(dir, "lazy"), Timeout: timeout, Faults: lazy.NewFaults(filepath.Join(dir, "faults")), MinFree: 1, Cache: 64 * mib, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	all, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if _, err := s.Attach(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("ready")
	t.Fatal(s.Serve(t.Context(), hold.NewClient(filepath.Join(dir, "hold"))))
}

// child starts a server in a process of its own, and returns what kills it.
func (r *rig) child() (kill func()) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeForever$")
	cmd.Env = append(os.Environ(), childEnv+"="+r.dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		r.t.Fatalf("the server does not start: %q\n%s", lines.Text(), errs.Bytes())
	}
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			r.t.Error(err)
		}
		_ = cmd.Wait() // killed
	}
}

// withStore publishes a sample into a store on disk, which children serve, and lets this process know it.
func (r *rig) withStore(size int) *layertest.Sample {
	r.t.Helper()
	store, err := posix.Open(filepath.Join(r.dir, "store"), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	s := layertest.NewSample(r.t, 1, size)
	if _, err := store.Put(r.t.Context(), s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(s.Data)); err != nil {
		r.t.Fatal(err)
	}
	r.store.Store = store
	return s
}

// attachOnly makes a server that brings metadata and serves nothing.
func (r *rig) attachOnly() {
	r.t.Helper()
	s, err := lazy.NewServer(r.store, r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = s
	r.ends = append(r.ends, s.Close)
}

// TestKilledUnderLoad: servers are killed at any moment while many read; each reader waits for the next and gets what
// it asked for.
func TestKilledUnderLoad(t *testing.T) {
	r := newRig(t, nil)
	s := r.withStore(24 * mib)
	kill := r.child()
	r.attachOnly()
	file := filepath.Join(r.mount(s.Digest), "file-1")
	start := time.Now()
	var wg sync.WaitGroup
	done := make(chan struct{})
	for n := range 8 {
		wg.Go(func() {
			for off := int64(n) * 3 * mib; off < int64(n+1)*3*mib; off += 64 << 10 {
				good(t, file, s.Data, off, 64<<10)
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	kills := 0
	for alive := true; alive; {
		select {
		case <-done:
			alive = false
		case <-time.After(60 * time.Millisecond):
		}
		kill()
		kills++
		kill = r.child()
	}
	kill()
	if kills < 3 {
		t.Errorf("only %d kills", kills)
	}
	if faulty(t, r, s.Digest, start) {
		t.Error("a fault was written down")
	}
	t.Logf("%d kills", kills)
}

// TestNoSuccessor: when no server comes back in time readers get EIO, never anything else, and it is written down; the
// next server serves them again, without a new mount.
func TestNoSuccessor(t *testing.T) {
	r := newRig(t, nil)
	s := r.withStore(24 * mib)
	kill := r.child()
	r.attachOnly()
	file := filepath.Join(r.mount(s.Digest), "file-1")
	good(t, file, s.Data, 0, 4096)
	start := time.Now()
	kill()
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			_, err := readAt(file, int64(8+4*n)*mib, 4096)
			wantEIO(t, err)
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 10*timeout {
		t.Errorf("EIO after %v", took)
	}
	if !faulty(t, r, s.Digest, start) {
		t.Error("the fault was not written down")
	}
	kill = r.child()
	defer kill()
	same(t, file, s.Data[:24*mib])
}
