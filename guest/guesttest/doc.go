// Package guesttest spawns real dsec-inits for tests: in namespaces of their own, over a root made from the
// host's files, driven through guest/aether. It needs root. What it makes it removes when the test ends.
package guesttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// BaseID is the host id of root in the test sandboxes; IDs is the size of their range.
const (
	BaseID = 3_000_000
	IDs    = 65536
)

var build struct {
	once sync.Once
	path string
	err  error
}

// Binary builds dsec-init once per test process, root-owned and not readable by sandboxes, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	build.once.Do(func() {
		dir, err := os.MkdirTemp("", "dsec-init-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "dsec-init")
		// Where there is no compiler, DSEC_TEST_INIT names a built one.
		cmd := exec.Command("cp", os.Getenv("DSEC_TEST_INIT"), build.path)
		if os.Getenv("DSEC_TEST_INIT") == "" {
			cmd = exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", build.path, "github.com/opendsec/dsec/cmd/dsec-init")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = &exec.Error{Name: string(out), Err: err}
			return
		}
		for path, mode := range map[string]os.FileMode{dir: 0o711, build.path: 0o711} {
			if err := os.Chmod(path, mode); err != nil {
				build.err = err
			}
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Cleanup removes the binary and what mounts hang on; for TestMain, after all tests.
func Cleanup() {
	if mountsDir != "" {
		os.Remove(mountsDir)
	}
	if build.path != "" {
		os.RemoveAll(filepath.Dir(build.path))
	}
}
