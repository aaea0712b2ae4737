package fullvm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// run runs a program that must succeed.
func run(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(name), err, out)
	}
}

// systemInit is the first program of a small system: what one has from the start, and the agent, again whenever it ends.
const systemInit = `#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
hostname small
echo "system is up" >/dev/ttyS0
while :; do
	[ -e /no-agent ] || /usr/lib/dsec/dsec-init agent >/dev/ttyS0 2>&1
	sleep 1
done
`

// agentDisk makes the disk of a small Debian with the agent, started without a service manager.
func agentDisk(t *testing.T) []byte {
	t.Helper()
	kernels := filepath.Join(testkit.Cache(), "kernel")
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := debkernel.Fetch(t.Context(), &debkernel.Options{Cache: kernels})
	if err != nil {
		t.Fatalf("no kernel: %v", err)
	}
	tar, err := testkit.DebianBase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := testkit.Init(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, out := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "disk.raw")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "tar", "-C", root, "-xf", tar)
	run(t, []string{"INIT=" + bin}, "../../hack/fullvm-agent.sh", "--root", root)
	if err := os.WriteFile(filepath.Join(root, "usr/sbin/init"), []byte(systemInit), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "../../hack/fullvm-image.sh", k.Image(), out, root, k.ModulesDir(), "448")
	disk, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// agentFactory makes machines whose system starts an agent.
func agentFactory(n *sandboxtest.Node) sandboxtest.Factory {
	f := n.Factory
	f.Limits = &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 2000, Pids: 400, DiskBytes: 640 << 20}
	f.MinDisk = f.Limits.DiskBytes
	f.ImageEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	f.Config = func(c *edge.Config) { c.CreateTimeout, c.Parallel = 10*time.Minute, 2 }
	f.KillInit = func(t testing.TB, b sandbox.Backend, id sandbox.ID) {
		if err := b.(*fullvm.Driver).EndInit(id); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestAgent: with an agent inside a full VM does what the others do; it is found again by the next edge, and comes back
// with a system that restarts.
func TestAgent(t *testing.T) {
	slow(t)
	first := node(t, agentDisk(t), "&agent=true")
	n := sandboxtest.Start(t, agentFactory(first), nil)
	b := n.Create(t, &dsecv1.SandboxSpec{Hostname: "my-vm", Env: map[string]string{"GREETING": "hello"}})
	b.WantShell("echo $GREETING from $(hostname); stat -f -c %T /; cat /proc/1/comm", "hello from my-vm\next2/ext3\ninit\n")
	b.Write("/root/file", "content")
	b.WantShell("cat /root/file; test -b /dev/vda && echo disk", "contentdisk\n")
	shot(t, b)
	n.Restart()
	b.WantShell("cat /root/file", "content")

	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "sync; echo on; sleep 600"}})
	st.Until("on")
	b.Detach(&dsecv1.CommandSpec{Shell: "sleep 1; echo b >/proc/sysrq-trigger"})
	events := st.All()
	if end := events[len(events)-1].GetEnded().GetResult().GetEnd(); end.GetKind() != string(sandbox.KindInitKilled) || !strings.Contains(end.GetMessage(), "restarts") {
		t.Errorf("a command whose system was restarted: %v", end)
	}
	sandboxtest.Eventually(t, "the agent is back", func() bool {
		r, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "cat /root/file"}})
		if err != nil {
			sandboxtest.WantCode(t, err, connect.CodeUnimplemented, "install it")
			return false
		}
		return string(r.Stdout) == "content"
	})
	b.WantShell("touch /no-agent; sync", "")
	n.Backend.(*fullvm.Driver).EndInit(sandbox.ID(b.ID))
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindInitKilled) {
		t.Errorf("after its dsec-init was killed: %v", end)
	}
}

// TestNoAgentComes: a disk that does not keep its promise is told as that, with what it showed.
func TestNoAgentComes(t *testing.T) {
	slow(t)
	n := sandboxtest.Start(t, agentFactory(node(t, linuxDisk(t), "&agent=true")), func(c *edge.Config) { c.CreateTimeout = 50 * time.Second })
	resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), n.Request(nil))
	if err != nil {
		t.Fatal(err)
	}
	f := resp.Response.Results[0].GetError().GetFailure()
	if f.GetKind() != string(sandbox.KindBootFailed) || !strings.Contains(f.GetMessage(), "--agent") || !strings.Contains(f.GetEvidence(), "system is up") {
		t.Errorf("got %v", resp.Response.Results[0])
	}
}

// TestConformance runs the suite that every backend passes.
func TestConformance(t *testing.T) {
	slow(t)
	sandboxtest.Run(t, agentFactory(node(t, agentDisk(t), "&agent=true")))
}
