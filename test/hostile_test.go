package test

import (
	"context"
	_ "embed"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// rootAttack is what root in a sandbox tries; see there.
//
//go:embed testdata/root.py
var rootAttack string

// TestRootInside: root in a sandbox reaches neither its dsec-init nor the node. What dsec-init itself does against
// root with every capability, without the system-call filter, guest/initd shows.
func TestRootInside(t *testing.T) {
	n := startNode(t)
	ids := n.create(2, nil)
	neighbour := ids[1]
	id := ids[0]
	n.upload(id, "/root.py", rootAttack)
	for _, what := range []string{"platform", "memory", "descriptors", "sockets", "groups", "kernel", "ioctls", "signals"} {
		t.Run(what, func(t *testing.T) {
			r := n.run(t, id, 60*time.Second, "python3", "/root.py", what)
			if got := string(r.GetStdout()); got != "done\n" {
				t.Errorf("%v\n%s%s", r.GetCommand().GetResult(), got, r.GetStderr())
			}
			n.must(id, "true")
			n.answers(t, neighbour)
		})
	}
	for _, sig := range []string{"TERM", "KILL", "STOP"} {
		// All that it can reach; the command itself too.
		if _, err := n.exec(id, "kill -"+sig+" -1; kill -"+sig+" 1; kill -CONT -1; true"); err != nil {
			t.Errorf("kill -%s -1: %v", sig, err)
		}
		n.must(id, "true")
	}
	if got, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil || got.GetSandbox().GetState() != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
		t.Errorf("the sandbox: %v, %v", got, err)
	}
}

// limitAttack takes something away from dsec-init: what the kernel lets any process of the same user do.
const limitAttack = `
import ctypes, os, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
tids = [int(t) for t in os.listdir("/proc/1/task")]
what = sys.argv[1]
for t in tids:
    if what.startswith("RLIMIT"):
        libc.syscall(302, t, getattr(resource, what), struct.pack("QQ", int(sys.argv[2]), int(sys.argv[2])), None)
    elif what == "nice":
        libc.setpriority(0, t, 19)
    elif what == "idle":
        libc.sched_setscheduler(t, 5, struct.pack("i", 0))
    elif what == "affinity":
        libc.sched_setaffinity(t, 8, struct.pack("Q", 1))
    elif what == "ioprio":
        libc.syscall(251, 1, t, 3 << 13)
    elif what == "timerslack":
        open("/proc/%d/timerslack_ns" % t, "w").write("1000000000")
`

// TestLimitsOfInit: root inside changes the limits and priorities of dsec-init, which the kernel permits to the same
// user. The sandbox may end by that, and is then said to have ended itself; nobody else is touched.
func TestLimitsOfInit(t *testing.T) {
	n := startNode(t)
	neighbour := n.create(1, nil)[0]
	for _, c := range [][]string{
		{"RLIMIT_NOFILE", "0"}, {"RLIMIT_NOFILE", "12"}, {"RLIMIT_AS", "1"}, {"RLIMIT_DATA", "1"}, {"RLIMIT_CPU", "1"}, {"RLIMIT_STACK", "4096"},
		{"RLIMIT_FSIZE", "0"}, {"RLIMIT_NPROC", "0"}, {"RLIMIT_SIGPENDING", "0"}, {"RLIMIT_MEMLOCK", "0"}, {"RLIMIT_CORE", "0"},
		{"nice"}, {"idle"}, {"affinity"}, {"ioprio"},
	} {
		name := c[0]
		if len(c) > 1 {
			name += "=" + c[1]
		}
		t.Run(name, func(t *testing.T) {
			id := n.create(1, nil)[0]
			n.run(t, id, 20*time.Second, append([]string{"python3", "-c", limitAttack}, c...)...)
			n.survived(t, id)
			// Files, too, are served or refused, in bounded time.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := n.Client.WriteFile(ctx, id, "/tmp/x", client.WriteOptions{}, strings.NewReader("x")); ctx.Err() != nil {
				t.Errorf("write a file: %v", err)
			}
			n.survived(t, id)
			n.answers(t, neighbour)
			if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}
