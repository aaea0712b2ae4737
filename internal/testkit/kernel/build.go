package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/testkit"
)

// Packages are what runs in the machine when nothing else is asked for.
var Packages = []string{"./internal/linux/...", "./policy/confine", "./backend/container/...", "./guest/..."}

// testTimeout bounds one package's tests.
const testTimeout = 40 * time.Minute

// patience multiplies the tests' own deadlines: emulation is ten times slower.
const patience = "10"

// testSize is the size of the disk with the tests, bytes; the file is sparse.
const testSize = 1 << 30

// initName is dsec-init on the disk with the tests; DSEC_TEST_INIT names it.
const initName = ".kernel/dsec-init"

// testDisk builds the tests of the packages and makes the disk that holds them, with what they look for in the
// source tree.
func testDisk(ctx context.Context, o *Options, packages []string, run, path string) (*Plan, error) {
	list, err := command(ctx, o.Source, "", "go", append([]string{"list", "-f",
		"{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"}, packages...)...)
	if err != nil {
		return nil, err
	}
	p := &Plan{Source: o.Source, Cache: testkit.Cache()}
	args := []string{"-test.v", "-test.timeout=" + testTimeout.String()}
	if !o.Long {
		args = append(args, "-test.short")
	}
	if run != "" {
		args = append(args, "-test.run="+run)
	}
	return p, makeImage(ctx, path, testSize, func(dir string) error {
		if err := build(ctx, o, filepath.Join(dir, initName), "build", "./cmd/dsec-init"); err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			pkg, src, ok := strings.Cut(strings.TrimSpace(line), "\t")
			if !ok {
				continue
			}
			rel, err := filepath.Rel(o.Source, src)
			if err != nil {
				return err
			}
			name := filepath.Join(".kernel", strings.ReplaceAll(rel, "/", "_")+".test")
			if err := build(ctx, o, filepath.Join(dir, name), "test", "./"+rel); err != nil {
				return err
			}
			p.Tests = append(p.Tests, Test{Package: pkg, Binary: filepath.Join(o.Source, name), Dir: src, Args: args,
				Env: []string{"DSEC_CACHE=" + p.Cache, "DSEC_TEST_INIT=" + filepath.Join(o.Source, initName),
					"DSEC_TEST_PATIENCE=" + patience}})
			if err := os.MkdirAll(filepath.Join(dir, rel), 0o755); err != nil {
				return err
			}
			if err := copyTree(filepath.Join(src, "testdata"), filepath.Join(dir, rel, "testdata")); err != nil {
				return err
			}
		}
		if len(p.Tests) == 0 {
			return fmt.Errorf("no tests in %q", packages)
		}
		if err := copyTree(filepath.Join(o.Source, "hack"), filepath.Join(dir, "hack")); err != nil {
			return err
		}
		b, err := json.MarshalIndent(p, "", "\t")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, PlanFile), b, 0o644)
	})
}

// build builds a program or a test without C, so that it runs in any tree.
func build(ctx context.Context, o *Options, out, verb, pkg string) error {
	args := []string{verb, "-o", out}
	if verb == "test" {
		args = []string{verb, "-c", "-vet=off", "-o", out}
	}
	_, err := command(ctx, o.Source, "CGO_ENABLED=0", "go", append(args, pkg)...)
	return err
}

// copyTree copies a folder of plain files; a missing one is no error.
func copyTree(from, to string) error {
	err := os.CopyFS(to, os.DirFS(from))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
