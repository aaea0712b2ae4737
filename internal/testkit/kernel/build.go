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

// Share is a part of what is to be run: the tests of the packages that match Run and not Skip; empty: all.
type Share struct {
	Packages  []string
	Run, Skip string
}

// conformance is the longest test of all.
const conformance = "^TestConformance$"

// Shares are what runs when nothing else is asked for, by machine: about as long on each.
var Shares = [][]Share{
	{{Packages: []string{"./internal/linux/...", "./policy/confine", "./backend/container/cgroup", "./backend/container/pool", "./backend/container/spawn",
		"./guest/aether", "./guest/cell", "./guest/chronus", "./guest/files", "./guest/machine", "./guest/users", "./guest/wire"}},
		{Packages: []string{"./backend/container"}, Run: conformance}},
	{{Packages: []string{"./backend/container"}, Skip: conformance}, {Packages: []string{"./guest/initd"}}},
}

// testTimeout bounds one package's tests.
const testTimeout = 40 * time.Minute

// patience multiplies the tests' own deadlines: emulation is ten times slower.
const patience = "10"

// testSize is the size of the disk with the tests, bytes; the file is sparse.
const testSize = 1 << 30

// initName is dsec-init on the disk with the tests; DSEC_TEST_INIT names it.
const initName = ".kernel/dsec-init"

// scratchDir is where the machine's empty disk is mounted. Sockets lie below it: it has to be short.
const scratchDir = "/xfs"

// testDisk builds the tests of the shares and makes the disk that holds them, with what they look for in the source
// tree.
func testDisk(ctx context.Context, o *Options, shares []Share, path string) (*Plan, error) {
	p := &Plan{Source: o.Source, Cache: testkit.Cache(), Scratch: scratchDir}
	return p, makeImage(ctx, path, testSize, func(dir string) error {
		if err := build(ctx, o, filepath.Join(dir, initName), "build", "./cmd/dsec-init"); err != nil {
			return err
		}
		for _, s := range shares {
			tests, err := shareTests(ctx, o, &s, p, dir)
			if err != nil {
				return err
			}
			p.Tests = append(p.Tests, tests...)
		}
		if len(p.Tests) == 0 {
			return fmt.Errorf("no tests in %+v", shares)
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

// shareTests puts what a share's tests are made of below dir, and tells how they are run.
func shareTests(ctx context.Context, o *Options, s *Share, p *Plan, dir string) (tests []Test, err error) {
	list, err := command(ctx, o.Source, "", "go", append([]string{"list", "-f",
		"{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"}, s.Packages...)...)
	if err != nil {
		return nil, err
	}
	// test2json: verdicts come as they fall, those of subtests too.
	args := []string{"-test.v=test2json", "-test.timeout=" + testTimeout.String()}
	label := ""
	if !o.Long {
		args = append(args, "-test.short")
	}
	if s.Run != "" {
		args, label = append(args, "-test.run="+s.Run), ":"+s.Run
	}
	if s.Skip != "" {
		args, label = append(args, "-test.skip="+s.Skip), label+":but:"+s.Skip
	}
	for line := range strings.Lines(list) {
		pkg, src, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		rel, err := filepath.Rel(o.Source, src)
		if err != nil {
			return nil, err
		}
		name := filepath.Join(".kernel", strings.ReplaceAll(rel, "/", "_")+".test")
		env := []string{"DSEC_CACHE=" + p.Cache, "DSEC_TEST_INIT=" + filepath.Join(o.Source, initName), "DSEC_TEST_PATIENCE=" + patience}
		if strings.HasPrefix(rel, "backend/") { // whose tests are nodes; others want what is below the root's own file system
			env = append(env, "TMPDIR="+p.Scratch)
		}
		tests = append(tests, Test{Package: pkg + strings.ReplaceAll(label, " ", "_"), Binary: filepath.Join(o.Source, name), Dir: src, Args: args, Env: env})
		if exists(filepath.Join(dir, name)) {
			continue // another share's
		}
		if err := build(ctx, o, filepath.Join(dir, name), "test", "./"+rel); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, rel), 0o755); err != nil {
			return nil, err
		}
		if err := copyTree(filepath.Join(src, "testdata"), filepath.Join(dir, rel, "testdata")); err != nil {
			return nil, err
		}
	}
	return tests, nil
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
