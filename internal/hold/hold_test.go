package hold

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, socket) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// client waits until the holder answers, as every client does that is started beside its holder.
func client(t *testing.T, socket string) *Client {
	t.Helper()
	c := NewClient(socket)
	if _, err := c.List(""); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDescriptorsOutliveClients(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "hold.sock")
	stop := serve(t, socket)
	defer stop()
	a := client(t, socket)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	if err := a.Put("layer/x", f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	a.Close()

	b := client(t, socket)
	defer b.Close()
	if _, err := b.Get("layer/y"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatalf("unknown name: %v", err)
	}
	names, err := b.List("layer/")
	if err != nil || len(names) != 1 || names[0] != "layer/x" {
		t.Fatalf("list: %v, %v", names, err)
	}
	g, err := b.Get("layer/x")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	data, err := io.ReadAll(io.NewSectionReader(g, 0, 10))
	if err != nil || string(data) != "kept" {
		t.Fatalf("read %q, %v", data, err)
	}
	if err := b.Drop("layer/x"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get("layer/x"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatalf("after drop: %v", err)
	}
}

func TestClientConnectsAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "hold.sock")
	stop := serve(t, socket)
	c := client(t, socket)
	defer c.Close()
	stop()
	if _, err := c.List(""); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Fatalf("without a holder: %v", err)
	}
	stop = serve(t, socket)
	defer stop()
	client(t, socket).Close()
	if _, err := c.List(""); err != nil {
		t.Fatalf("after its restart: %v", err)
	}
}

// TestSecondHolder: a second holder of the same socket ends with an error, and the first keeps what it has, reached as
// before.
func TestSecondHolder(t *testing.T) {
	defer func(d time.Duration) { lockWait = d }(lockWait)
	lockWait = 50 * time.Millisecond
	socket := filepath.Join(t.TempDir(), "hold.sock")
	stop := serve(t, socket)
	c := client(t, socket)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.Put("first", f); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := Serve(t.Context(), socket); !errors.Is(err, sandbox.ErrConflict) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a second holder: %v", err)
	}
	// Without its lock file it is found by its socket.
	if err := os.Remove(LockPath(socket)); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), socket); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("a second holder, of another lock: %v", err)
	}
	c = client(t, socket)
	got, err := c.Get("first")
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
	c.Close()
	stop()
	// The end of the first makes room.
	stop = serve(t, socket)
	client(t, socket).Close()
	stop()
}

// TestLease: what is done when a descriptor's user does not come back, and that it ends when it does.
func TestLease(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "hold.sock")
	ctx, cancel := context.WithCancel(t.Context())
	lapsed, renewed := make(chan string), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- ServeWith(ctx, socket, Options{Lapsed: func(ctx context.Context, name string, f *os.File) {
			if _, err := f.Stat(); err != nil {
				t.Error(err)
			}
			lapsed <- name
			<-ctx.Done()
			renewed <- struct{}{}
		}})
	}()
	c := client(t, socket)
	defer c.Close()
	if err := c.Lease("x", time.Minute); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a lease on nothing: %v", err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.Put("x", f); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Lease("x", time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if name := <-lapsed; name != "x" {
			t.Errorf("lapsed: %q", name)
		}
		if err := c.Lease("x", time.Hour); err != nil {
			t.Fatal(err)
		}
		<-renewed
	}
	// Dropped, and at the holder's end, it is over as well.
	if err := c.Lease("x", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-lapsed
	if err := c.Drop("x"); err != nil {
		t.Fatal(err)
	}
	<-renewed
	if err := errors.Join(c.Put("x", f), c.Lease("x", time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	<-lapsed
	cancel()
	<-renewed
	if err := <-done; err != nil {
		t.Error(err)
	}
}
