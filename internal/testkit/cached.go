package testkit

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Cached makes a directory of the cache once, by running a command that fills it; others that need it wait. make gets
// the directory's path. It is empty and there when the command runs; what a failed one left is removed by the next.
func Cached(ctx context.Context, name string, make func(dir string) *exec.Cmd) (string, error) {
	dir := filepath.Join(Cache(), name)
	script := `set -e; mkdir -p "$0"; exec 9>"$1.lock"; flock 9; [ -e "$1/.done" ] && exit 0; rm -rf "$1"; mkdir "$1"; shift; dir=$1; shift; "$@" >&2; touch "$dir/.done"`
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", script, Cache(), dir, dir}, make(dir).Args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("install %s: %w\n%s", name, err, errs.String())
	}
	return dir, nil
}

// PythonPackages is a virtual environment of the cache with exactly these packages and what they need.
func PythonPackages(ctx context.Context, name string, packages ...string) (python string, err error) {
	dir, err := Cached(ctx, name, func(dir string) *exec.Cmd {
		return exec.Command("bash", append([]string{"-c", `python3 -m venv "$0" && "$0/bin/pip" install -q --disable-pip-version-check "$@"`, dir}, packages...)...)
	})
	return filepath.Join(dir, "bin", "python"), err
}
