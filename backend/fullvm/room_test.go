package fullvm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/sandbox"
)

// smallState is a state directory with that much room.
func smallState(t *testing.T, size string) string {
	state := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", state).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", state).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return state
}

// TestNoRoom: where the node has no room for what a machine writes, that is the node's doing, and is told.
func TestNoRoom(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	state := smallState(t, "2m")
	d := n.Factory.Backend(t, sandbox.NewEdgeID(), state)
	defer func() {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	i, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: n.Factory.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 32 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	// The rest of the room is someone else's.
	if err := os.WriteFile(filepath.Join(state, "full"), make([]byte, 4<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	// Enter writes a sector. What the machine shows by then has no room either.
	if err := i.(sandbox.Screen).Type(t.Context(), "more\n", 0); err != nil && !strings.Contains(err.Error(), "not running") {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	case <-t.Context().Done():
	}
	if f := i.End(); f == nil || f.Kind != sandbox.KindStoreFault || f.Blame != sandbox.BlameInfra {
		t.Errorf("it ended as %v", f)
	}
}
