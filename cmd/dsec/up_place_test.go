package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// TestStateInMemory: a node does not start where its layers could not be mounted, and leaves nothing there.
func TestStateInMemory(t *testing.T) {
	const memory = "/dev/shm"
	if tmpfs, err := linux.InMemory(memory); err != nil || !tmpfs || os.Geteuid() != 0 {
		t.Skip("needs root and a tmpfs on " + memory)
	}
	dir := filepath.Join(memory, fmt.Sprintf("dsec-test-%d", os.Getpid()))
	state := filepath.Join(dir, "s")
	up := exec.Command(binary, "up", "--detach", "--no-user-config", "--state", state, "--listen", "127.0.0.1:0", "--ports-listen", "127.0.0.1:0")
	out, err := up.CombinedOutput()
	if err == nil || up.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), state+" lies on tmpfs: ") || !strings.Contains(string(out), "ext4, xfs or btrfs") {
		t.Errorf("up in memory: %v\n%s", err, out)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Errorf("up left %s", dir)
		_ = os.RemoveAll(dir)
	}
	if err := checkPlace(state, "container"); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("not typed: %v", err)
	}
	if err := checkPlace(state, "fake"); err != nil {
		t.Errorf("the fake driver has no layers to mount: %v", err)
	}
}
