package container

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/sandbox"
)

// TestAttachedMounts lets the driver work as it has to on kernels below 6.15, with a holder that keeps its mount
// namespace: a successor finds the pool and the layers mounted, and nothing shows in the host's namespace.
func TestAttachedMounts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "hold.sock")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	b := newBed(t, func(c *Config) {
		go func() { served <- hold.Serve(ctx, socket) }()
		c.Hold, c.AttachMounts = hold.NewClient(socket), true
		for deadline := time.Now().Add(10 * time.Second); ; {
			if _, err := c.Hold.List(""); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	})
	t.Cleanup(func() { // before the bed looks for what is left
		b.cfg.Hold.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	if !b.d.space.Attached() {
		t.Fatal("layers are not attached")
	}
	i := b.create(nil)
	c := connect(t, i)
	c.must("echo kept > /kept; python3 -c 'print(1)'")
	c.conn.Close()
	device := layerDevice(t, b)

	b.d.abandon()
	b.open()
	r, err := b.d.Recover(t.Context(), i.ID(), i.Handle())
	if err != nil {
		t.Fatal(err)
	}
	b.made = append(b.made, r)
	if _, err := b.d.Sweep(t.Context(), func(s sandbox.ID) bool { return s == i.ID() }); err != nil {
		t.Fatal(err)
	}
	if out := connect(t, r).must("cat /kept"); out != "kept\n" {
		t.Fatalf("after the restart: %q", out)
	}
	alive(t, connect(t, b.create(nil)))
	if again := layerDevice(t, b); again != device {
		t.Errorf("the layer was mounted twice: devices %d, then %d", device, again)
	}
}

// layerDevice names the file system of the one layer that is mounted.
func layerDevice(t *testing.T, b *bed) uint64 {
	t.Helper()
	b.d.mounts.mu.Lock()
	defer b.d.mounts.mu.Unlock()
	for _, m := range b.d.mounts.m {
		st, err := m.mount.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t).Dev
	}
	t.Fatal("no layer is mounted")
	return 0
}
