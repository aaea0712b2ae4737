package fullvm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestSnapshotNoRoom: a machine goes on after a snapshot that the node has no room for, and nothing of that is kept.
func TestSnapshotNoRoom(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	state := smallState(t, "6m")
	b := n.Factory.Backend(t, sandbox.NewEdgeID(), state)
	defer func() {
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	d := b.(*fullvm.Driver)
	i, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: n.Factory.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	s := i.(sandbox.Screen)
	for round := range 8 {
		// As much as it wants, but for a little that differs each time.
		fill(t, state, int64(round+1)*100<<10)
		_, err := d.Snapshot(t.Context(), i, sandbox.NewSnapshotID(sandbox.NewEdgeID()), false)
		if !errors.Is(err, sandbox.ErrExhausted) {
			t.Errorf("%v", err)
		}
		if err := os.Remove(filepath.Join(state, "full")); err != nil {
			t.Fatal(err)
		}
		if err := s.Type(t.Context(), "on", 0); err != nil {
			t.Fatal(err)
		}
		sandboxtest.Eventually(t, "it goes on", func() bool {
			text, err := s.ScreenText(t.Context())
			return err == nil && strings.Contains(text, strings.Repeat("on", round+1))
		})
		left, err := filepath.Glob(filepath.Join(state, "fullvm-snapshots/*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

// fill leaves that much room in a directory's file system, bytes.
func fill(t *testing.T, dir string, leave int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, int64(st.Bavail)*st.Bsize-leave), 0o600); err != nil {
		t.Fatal(err)
	}
}
