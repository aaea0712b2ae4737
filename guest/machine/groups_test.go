package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/opendsec/dsec/guest/guesttest"
)

// TestRemoveNested: what a command's programs have made in its group, in namespaces of their own, goes with it, processes included.
func TestRemoveNested(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	work := guesttest.NewGroup(t).Path
	before := workGroup
	workGroup = work
	t.Cleanup(func() { workGroup = before })
	g := &groups{}
	for _, f := range g.make("c1") {
		f.Close()
	}
	deep := filepath.Join(work, "c1", "a", "b")
	for _, dir := range []string{deep, filepath.Join(work, "c1", "z")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := os.WriteFile(deep+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if err := g.remove("c1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(work, "c1")); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if err := g.remove("c1"); err != nil {
		t.Errorf("what is gone: %v", err)
	}
}
