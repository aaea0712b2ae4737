package fullvm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func keep(t *testing.T, b *sandboxtest.Box) sandbox.SnapshotID {
	t.Helper()
	resp, err := b.N.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.SnapshotID(resp.Snapshot.Id)
}

// from makes a machine of a snapshot.
func from(t *testing.T, n *sandboxtest.Node, id sandbox.SnapshotID, rules ...*dsecv1.NetworkRule) (*sandboxtest.Box, *dsecv1.Error) {
	t.Helper()
	resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), &dsecv1.CreateResolvedRequest{KeyId: "test", Create: &dsecv1.CreateSandboxRequest{
		Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Snapshot: string(id)}, Limits: n.Factory.Limits, NetworkRules: rules}}})
	if err != nil {
		t.Fatal(err)
	}
	r := resp.Response.Results[0]
	if r.Error != nil {
		return nil, r.Error
	}
	return n.Box(t, r.Sandbox), nil
}

// TestSnapshot: what is on the screen, in memory and on the disk goes on in copies, and each goes its own way; the edge may be
// another by then. A snapshot that was changed is refused, and so is a layer of it.
func TestSnapshot(t *testing.T) {
	n := node(t, fullvmtest.Echo("as imported"), "")
	b := n.Create(t, nil)
	awaitText(t, b, "ready: as imported")
	typeText(t, b, "first\n")
	awaitText(t, b, "stored")
	typeText(t, b, "half of a")
	awaitText(t, b, "half of a")
	id := keep(t, b)
	typeText(t, b, " second line")
	awaitText(t, b, "half of a second line")
	n.Restart()
	c, failed := from(t, n, id)
	if failed != nil {
		t.Fatal(failed)
	}
	awaitText(t, c, "half of a")
	typeText(t, c, " copy\n")
	awaitText(t, c, "half of a copy")
	resp, err := n.Snapshots.ForkSandbox(c.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: c.ID, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Results {
		if r.Error != nil {
			t.Fatal(r.Error)
		}
		child := n.Box(t, r.Sandbox)
		awaitText(t, child, "half of a copy")
		typeText(t, child, "of one's own")
		awaitText(t, child, "of one's own")
		child.Stop()
	}
	awaitText(t, b, "half of a second line")
	if _, err := n.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	paused := keep(t, b)
	if st := b.Get().State; st != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("a snapshot brought a paused full VM to %v", st)
	}
	p, failed := from(t, n, paused)
	if failed != nil {
		t.Fatal(failed)
	}
	awaitText(t, p, "half of a second line")
	p.Stop()

	d := n.Backend.(*fullvm.Driver)
	if _, err := d.OpenSnapshot(id); err == nil {
		t.Error("a full VM's disk is a layer")
	}
	dir := d.SnapshotDir(id)
	for _, name := range []string{"disk.qcow2", "state", "note.json"} {
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if name == "note.json" {
			bad = bytes.Replace(good, []byte("QEMU emulator"), []byte("another QEMU"), 1)
		}
		replace := func(b []byte) {
			d.ForgetVerified(id)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o400); err != nil {
				t.Fatal(err)
			}
		}
		replace(bad)
		if b, failed := from(t, n, id); failed == nil || failed.Code != connect.CodeFailedPrecondition.String() {
			t.Errorf("with another %s: %v, %v", name, b, failed)
		}
		replace(good)
	}
	awaitText(t, c, "half of a copy")
	c.Stop() // it held its snapshot
	for _, id := range []sandbox.SnapshotID{id, paused} {
		if _, err := n.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: string(id)}); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := d.Snapshots(); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestSnapshotFails: whatever step fails, the machine goes on and nothing is kept.
func TestSnapshotFails(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	b := n.Create(t, nil)
	awaitText(t, b, "ready: x")
	defer func() { _ = failpoint.Set("") }()
	for _, point := range []string{"fullvm/snapshot_frozen", "fullvm/snapshot_taken"} {
		if err := failpoint.Set(point + "=error"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID}); err == nil {
			t.Errorf("%s: a snapshot", point)
		}
		typeText(t, b, "on")
		awaitText(t, b, "on")
	}
	_ = failpoint.Set("fullvm/restored=error")
	id := keep(t, b)
	if c, failed := from(t, n, id); failed == nil {
		t.Errorf("a machine: %v", c)
	}
	_ = failpoint.Set("")
	if _, err := n.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: string(id)}); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string][]string{"fullvm-snapshots/*": nil, "run/fullvm/s*": {filepath.Join(n.State, "driver/run/fullvm", b.ID)}} {
		left, err := filepath.Glob(filepath.Join(n.State, "driver", pattern))
		if err != nil || !slices.Equal(left, want) {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

// TestAgentSnapshot: commands go on in copies, each of which is a machine of its own, with its own place in the network.
func TestAgentSnapshot(t *testing.T) {
	slow(t)
	f, inet := netFactory(t)
	n := sandboxtest.Start(t, f, nil)
	b := n.Create(t, &dsecv1.SandboxSpec{Env: map[string]string{"GREETING": "hello"},
		NetworkRules: []*dsecv1.NetworkRule{{Target: inet.One.String() + "/tcp", Allow: true}}})
	b.WantShell("echo 0123456789abcdef0123456789abcdef > /etc/machine-id; (i=0; while :; do i=$((i+1)); echo $i > /root/ticks; sleep 0.1; done) >/dev/null 2>&1 & echo up", "up\n")
	resp, err := n.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	all := []*sandboxtest.Box{b}
	for _, r := range resp.Results {
		if r.Error != nil {
			t.Fatal(r.Error)
		}
		all = append(all, n.Box(t, r.Sandbox))
	}
	seen := map[string]string{}
	for _, b := range all {
		b.WantShell("a=$(cat /root/ticks); for i in $(seq 100); do sleep 0.1; [ \"$(cat /root/ticks)\" != \"$a\" ] && echo ticks && break; done; echo $GREETING", "ticks\nhello\n")
		out := strings.Fields(string(b.Shell("cat /proc/sys/kernel/random/uuid; od -An -N16 -tx8 /dev/urandom | tr -d ' '; cat /etc/machine-id /sys/class/net/e*/address; uname -n; hostname -I | cut -d' ' -f1").Stdout))
		if len(out) != 6 {
			t.Fatalf("%q", out)
		}
		for _, v := range out {
			if other := seen[v]; other != "" {
				t.Errorf("%s and %s have both %s", b.ID, other, v)
			}
			seen[v] = b.ID
		}
		b.WantShell(reachScript(inet.One)+"; "+reachScript(inet.Other), "reached\nnot reached\n")
	}
	resp, err = n.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: all[1].ID})
	if err != nil || resp.Results[0].Error != nil {
		t.Fatal(err, resp)
	}
	grand := n.Box(t, resp.Results[0].Sandbox)
	grand.WantShell("uname -n; "+reachScript(inet.One), grand.ID+"\nreached\n")
	// A copy that has no network, and one of that which has one again.
	bare, failed := from(t, n, keep(t, grand))
	if failed != nil {
		t.Fatal(failed)
	}
	bare.WantShell("uname -n; "+reachScript(inet.One), bare.ID+"\nnot reached\n")
	again, failed := from(t, n, keep(t, bare), &dsecv1.NetworkRule{Target: inet.One.String() + "/tcp", Allow: true})
	if failed != nil {
		t.Fatal(failed)
	}
	again.WantShell("uname -n; "+reachScript(inet.One), again.ID+"\nreached\n")
	again.Stop()
	bare.Stop()
	n.Restart()
	grand.WantShell("uname -n; "+reachScript(inet.One), grand.ID+"\nreached\n")
	// A system of a snapshot restarts like any other: its interface is reset by that.
	const boot = "cat /proc/sys/kernel/random/boot_id"
	first := string(grand.Shell(boot).Stdout)
	grand.Detach(&dsecv1.CommandSpec{Shell: "sync; sleep 1; echo b >/proc/sysrq-trigger"})
	sandboxtest.Eventually(t, "the system is back, with its network", func() bool {
		r, err := n.Commands.Exec(grand.Ctx, &dsecv1.ExecRequest{SandboxId: grand.ID, Command: &dsecv1.CommandSpec{Shell: boot + "; " + reachScript(inet.One)}})
		return err == nil && strings.HasSuffix(string(r.Stdout), "\nreached\n") && !strings.HasPrefix(string(r.Stdout), first)
	})
}
