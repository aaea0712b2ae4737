package fullvm_test

import (
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// space bounds what a node saves.
func space(t *testing.T, n *sandboxtest.Node, o saved.Options) *saved.Space {
	t.Helper()
	state := filepath.Join(n.State, "driver")
	o.Places = fullvm.SavedPlaces(state)
	s, err := saved.Open(state, o)
	if err != nil {
		t.Fatal(err)
	}
	n.Backend.(*fullvm.Driver).UseSaved(s)
	return s
}

// TestSavedSpace: a snapshot that there is no room for is refused, and a fork; the machine goes on, nothing is kept, and when there is
// room again it works, for a driver that did not see what was saved too.
func TestSavedSpace(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	d := n.Backend.(*fullvm.Driver)
	const spare = 512 << 10 // for the machine's disk, less than what it saves
	o := saved.Options{Limit: fullvm.MostSaved(n.Factory.Limits.MemoryBytes) + spare, Floor: 1}
	s := space(t, n, o)
	used := func() int64 {
		t.Helper()
		_, n, err := s.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := n.Create(t, nil)
	awaitText(t, b, "ready: x")
	// One that fails gives back what it had.
	defer func() { _ = failpoint.Set("") }()
	if err := failpoint.Set("fullvm/snapshot_taken=error"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID}); err == nil {
		t.Error("a snapshot")
	}
	_ = failpoint.Set("")
	if n := used(); n != 0 {
		t.Errorf("a snapshot that failed takes %d", n)
	}
	id := keep(t, b)
	size := used()
	if dir, err := saved.Bytes(d.SnapshotDir(id)); err != nil || dir != size || size <= spare {
		t.Fatalf("a snapshot takes %d, %v; %d are used", dir, err, size)
	}
	refused := func(what string, err error, why string) {
		t.Helper()
		if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", what, err)
		}
		typeText(t, b, what)
		awaitText(t, b, what)
		left, err := filepath.Glob(d.SnapshotDir("*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != string(id) {
			t.Errorf("%s left %q, %v", what, left, err)
		}
	}
	for range 2 { // then by one that has not seen the first
		_, err := n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
		refused("again", err, "--opt saved-space")
		_, err = n.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID})
		refused("fork", err, "--opt saved-space")
		s = space(t, n, o)
		if n := used(); n != size {
			t.Errorf("%d are used; before it was %d", n, size)
		}
	}
	list, err := n.Snapshots.ListSnapshots(b.Ctx, &dsecv1.ListSnapshotsRequest{All: true})
	if err != nil || len(list.Snapshots) != 1 || list.Snapshots[0].SizeBytes != size {
		t.Errorf("%v, %v", list, err)
	}
	// Whatever the bound is, the disk keeps some room: for copies, too.
	space(t, n, saved.Options{Limit: 1 << 50, Floor: 1 << 50})
	_, err = n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	refused("floor", err, "stay free")
	if c, failed := from(t, n, id); failed == nil || failed.Code != connect.CodeResourceExhausted.String() {
		t.Errorf("a copy: %v, %v", c, failed)
	}
	s = space(t, n, o)
	c, failed := from(t, n, id)
	if failed != nil {
		t.Fatal(failed)
	}
	awaitText(t, c, "ready: x")
	c.Stop()
	if _, err := n.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: string(id)}); err != nil {
		t.Fatal(err)
	}
	if n := used(); n != 0 {
		t.Errorf("%d are used by nothing", n)
	}
	keep(t, b)
}
