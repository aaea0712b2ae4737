package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Programs that tests run beside the project's own, built from the Go module proxy and kept in the cache.
const (
	versityGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
	loopback  = "github.com/hanwen/go-fuse/v2/example/loopback@v2.12.1"
)

// goTool builds a program once and returns its path.
func goTool(ctx context.Context, pkg string) (string, error) {
	name, version, _ := strings.Cut(filepath.Base(pkg), "@")
	dir := filepath.Join(Cache(), "tools", "go", name+"-"+version)
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "install", pkg)
	cmd.Dir = "/" // not in this module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%.2000s", pkg, err, out)
	}
	return path, nil
}
