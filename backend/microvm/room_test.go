package microvm_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestNoRoom: where the node has no room for what a machine writes, that is the node's doing, and is told; so is a snapshot for
// which there is none; a paused machine stays in memory then.
func TestNoRoom(t *testing.T) {
	slow(t)
	f := factory(t)
	inner := f.Backend
	f.Backend = func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
		dir := filepath.Join(state, "run", "vm")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", dir).CombinedOutput(); err != nil {
			t.Fatalf("mount: %v %s", err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
				t.Errorf("umount: %v %s", err, out)
			}
		})
		return inner(t, id, state)
	}
	n := sandboxtest.Start(t, f, sandboxtest.Keeping(1))
	b := n.Create(t, nil)
	b.WantShell("echo up", "up\n")
	b.Pause()
	var why string
	sandboxtest.Eventually(t, "a paused one cannot be put away", func() bool {
		for _, ev := range b.Events(0) {
			if ev.Type == "save_failed" {
				why = ev.Message
			}
		}
		return why != ""
	})
	if now := b.Get(); now.Saved || now.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED || !strings.Contains(why, "make room") {
		t.Errorf("%s, %v", why, now)
	}
	b.WantShell("echo still here", "still here\n")
	b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "head -c 20M /dev/urandom > /root/big; sync; sleep 600"}})
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindStoreFault) || end.Blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("it ended as %v", end)
	}
}

// TestSavedSpace: without room a snapshot and a fork are refused, and the machine goes on; a paused one stays in memory, tells that
// once, and is put away when there is room. What a machine that was brought back maps of its saved memory counts until its end.
func TestSavedSpace(t *testing.T) {
	slow(t)
	f := factory(t)
	most := microvm.MostSaved(sandbox.Limits{MemoryBytes: f.Limits.MemoryBytes, CPUMillis: f.Limits.CpuMillis})
	n := sandboxtest.Start(t, f, func(c *edge.Config) { c.PauseKeepsMemory, c.SaveRetry = 1, 50*time.Millisecond })
	state := filepath.Join(n.State, "driver")
	// For the machine's disk there is room besides, and not for a second memory.
	s, err := saved.Open(state, saved.Options{Limit: most + 16<<20, Floor: 1, Places: microvm.SavedPlaces(state)})
	if err != nil {
		t.Fatal(err)
	}
	n.Backend.(*microvm.Driver).UseSaved(s)
	used := func() int64 {
		t.Helper()
		_, n, err := s.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	takes := func(path ...string) int64 {
		t.Helper()
		n, err := saved.Bytes(filepath.Join(append([]string{state}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := n.Create(t, nil)
	kept, err := n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	id := kept.Snapshot.Id
	if size := used(); size != takes("vm-snapshots", id) || size != kept.Snapshot.SizeBytes || size < 20<<20 {
		t.Errorf("a snapshot takes %d of the disk, and is said to take %d: %d are used", takes("vm-snapshots", id), kept.Snapshot.SizeBytes, size)
	}
	_, err = n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "--opt saved-space") {
		t.Errorf("a second one: %v", err)
	}
	_, err = n.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a fork: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(state, "vm-snapshots")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	b.WantShell("echo goes on", "goes on\n")
	// So are the files of its disk, for a pack.
	d := n.Backend.(*microvm.Driver)
	tight, err := saved.Open(state, saved.Options{Limit: used() + 64<<10, Floor: 1, Places: microvm.SavedPlaces(state)})
	if err != nil {
		t.Fatal(err)
	}
	d.UseSaved(tight)
	if _, err := d.OpenSnapshot(sandbox.SnapshotID(id)); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("its files: %v", err)
	}
	d.UseSaved(s)
	upper, err := d.OpenSnapshot(sandbox.SnapshotID(id))
	if err != nil {
		t.Fatal(err)
	}
	upper.Close()
	if size := used(); size != takes("vm-snapshots", id) || size <= kept.Snapshot.SizeBytes {
		t.Errorf("with its files it takes %d; %d are used", takes("vm-snapshots", id), size)
	}
	failures := func() (out []string) {
		for _, ev := range b.Events(0) {
			if ev.Type == "save_failed" {
				out = append(out, ev.Message)
			}
		}
		return out
	}
	b.Pause()
	sandboxtest.Eventually(t, "a paused one cannot be put away", func() bool { return len(failures()) > 0 })
	if now := b.Get(); now.Saved || now.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("without room: %v", now)
	}
	if _, err := n.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
		t.Fatal(err)
	}
	b.AwaitSaved()
	if told := failures(); len(told) != 1 || !strings.Contains(told[0], "--opt saved-space") {
		t.Errorf("told %q", told)
	}
	if size := used(); size != takes("run/vm", b.ID, "saved") || size < 20<<20 {
		t.Errorf("what is put away takes %d; %d are used", takes("run/vm", b.ID, "saved"), size)
	}
	b.WantShell("echo back", "back\n")
	if size := used(); size != takes("run/vm", b.ID, "memory") || size < 20<<20 {
		t.Errorf("what is brought back maps %d; %d are used", takes("run/vm", b.ID, "memory"), size)
	}
	b.Stop()
	sandboxtest.Eventually(t, "its memory's file is gone", func() bool { return used() == 0 })
}
