package testkit

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// BasePackages are what the demo's, the tests' and the benchmarks' base holds beside Debian's minimum.
var BasePackages = []string{"git", "procps", "python3", "python3-pytest"}

// CallPackages are what the base of function calls holds.
var CallPackages = []string{"g++", "gcc", "libc6-dev", "nodejs", "python3"}

// DebianBase returns the tar of a Debian tree with BasePackages, made once and kept in DSEC_CACHE.
func DebianBase(ctx context.Context) (string, error) { return DebianTree(ctx, BasePackages...) }

// DebianTree is DebianBase with other packages.
func DebianTree(ctx context.Context, packages ...string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "..", "..", "hack", "debian-base.sh")
	if !filepath.IsAbs(script) { // built with -trimpath: run from the repository
		script = "hack/debian-base.sh"
	}
	cmd := exec.CommandContext(ctx, script, packages...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("hack/debian-base.sh: %w\n%s", err, errs.String())
	}
	return strings.TrimSpace(string(out)), nil
}
