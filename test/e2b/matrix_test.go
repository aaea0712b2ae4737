package e2b

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the matrix of docs/e2b.md")

const docs = "../../docs/e2b.md"

// pack is one version of a package.
type pack struct {
	language, version string
	install           func(ctx context.Context) (run []string, err error)
}

func (p pack) String() string { return p.language + " " + p.version }

func python(version string) pack {
	return pack{"PyPI", version, func(ctx context.Context) ([]string, error) {
		dir, err := cached(ctx, "e2b-py-"+version, func(dir string) *exec.Cmd {
			return exec.Command("bash", "-c", `python3 -m venv "$0" && "$0/bin/pip" install -q --disable-pip-version-check "e2b==$1"`, dir, version)
		})
		return []string{filepath.Join(dir, "bin", "python"), "testdata/suite.py"}, err
	}}
}

func npm(version string) pack {
	return pack{"npm", version, func(ctx context.Context) ([]string, error) {
		dir, err := cached(ctx, "e2b-js-"+version, func(dir string) *exec.Cmd {
			return exec.Command("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", dir, "e2b@"+version)
		})
		return []string{"node", "testdata/suite.mjs", dir}, err
	}}
}

// packages are those that are judged: a current one, and one with the paths and bodies of before.
var packages = []pack{python("2.63.0"), python("2.50.0"), npm("2.51.0"), npm("2.50.0")}

// result is a line of a suite.
type result struct {
	Method, Outcome, Note string
}

func TestPackages(t *testing.T) {
	n := startNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	got := map[string]map[string]result{} // by method, by package
	var methods []string
	for _, p := range packages {
		t.Run(p.String(), func(t *testing.T) {
			run, err := p.install(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(ctx, run[0], append(run[1:], "debian")...)
			cmd.Env = n.env()
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v\n%s", p, err, errs.String())
			}
			for lines := bufio.NewScanner(&out); lines.Scan(); {
				var r result
				if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
					t.Fatalf("%s printed %q: %v", p, lines.Text(), err)
				}
				if r.Outcome == "failed" {
					t.Errorf("%s: %s", r.Method, r.Note)
				}
				if got[r.Method] == nil {
					got[r.Method] = map[string]result{}
					methods = append(methods, r.Method)
				}
				got[r.Method][p.String()] = r
			}
		})
	}
	if t.Failed() {
		return
	}
	compare(t, matrix(methods, got))
	if left, err := n.Run(ctx, "ps", "-q", "--state", n.state); err == nil && strings.TrimSpace(left) != "" {
		t.Errorf("sandboxes are left: %s", left)
	}
}

// matrix is the table of docs/e2b.md.
func matrix(methods []string, got map[string]map[string]result) string {
	var b strings.Builder
	b.WriteString("| Method |")
	for _, p := range packages {
		fmt.Fprintf(&b, " %s |", p)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(packages)) + "\n")
	for _, m := range methods {
		fmt.Fprintf(&b, "| `%s` |", m)
		for _, p := range packages {
			switch r, ok := got[m][p.String()]; {
			case !ok || r.Outcome == "absent":
				b.WriteString(" – |")
			default:
				fmt.Fprintf(&b, " %s |", r.Outcome)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

const begin, end = "<!-- matrix: go test ./test/e2b -update -->\n", "<!-- end of matrix -->"

func compare(t *testing.T, want string) {
	t.Helper()
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	is, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the matrix", docs)
	}
	if *update {
		if err := os.WriteFile(docs, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if is != want {
		t.Errorf("docs/e2b.md says otherwise (-update writes it):\n%s", want)
	}
}
