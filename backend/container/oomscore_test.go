package container

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// sysResource tells whether this process has CAP_SYS_RESOURCE, with which what it writes is a score's lower bound.
func sysResource(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	caps, err := strconv.ParseUint(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return caps&(1<<24) != 0
}

// TestKilledBeforeTheNode: when the machine runs out of memory, the kernel takes what runs in sandboxes first, and
// root inside cannot get ahead of the node.
func TestKilledBeforeTheNode(t *testing.T) {
	b := newBed(t, nil)
	c := connect(t, b.create(nil))
	if out := c.must("cat /proc/self/oom_score_adj; sh -c 'cat /proc/self/oom_score_adj'"); out != "500\n500\n" {
		t.Errorf("commands have the scores %q", out)
	}
	out := c.must("for v in -1000 -1 0 499; do (echo $v >/proc/self/oom_score_adj) 2>/dev/null && echo lowered to $v; done; true")
	want := ""
	if !sysResource(t) {
		want = "lowered to 0\nlowered to 499\n"
	}
	if out != want {
		t.Errorf("root inside: %q, want %q", out, want)
	}
	if out := c.must("echo 700 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj"); out != "700\n" {
		t.Errorf("it may offer itself first: %q", out)
	}
}
