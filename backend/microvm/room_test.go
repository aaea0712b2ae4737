package microvm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
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
