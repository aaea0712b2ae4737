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
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
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
		python, err := testkit.PythonPackages(ctx, "e2b-py-"+version, "e2b=="+version)
		return []string{python, "testdata/suite.py"}, err
	}}
}

func npm(version string) pack {
	return pack{"npm", version, func(ctx context.Context) ([]string, error) {
		dir, err := testkit.Cached(ctx, "e2b-js-"+version, func(dir string) *exec.Cmd {
			return exec.Command("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", dir, "e2b@"+version)
		})
		return []string{"node", "testdata/suite.mjs", dir}, err
	}}
}

// packages are those that are judged: a current one, and one with the paths and bodies of before. The ordinary run takes
// the current ones.
var packages = []pack{python("2.63.0"), python("2.50.0"), npm("2.51.0"), npm("2.50.0")}

// result is a line of a suite.
type result struct {
	Method, Outcome, Note string
}

func TestPackages(t *testing.T) {
	n, registry := startNode(t), image(t)
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	judged := packages
	if os.Getenv("DSEC_TEST_SLOW") == "" && !*update {
		judged = []pack{packages[0], packages[2]}
	}
	got := map[string]map[string]result{} // by method, by package
	var methods []string
	for _, p := range judged {
		t.Run(p.String(), func(t *testing.T) {
			run, err := p.install(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(ctx, run[0], append(run[1:], "debian", registry, os.Getenv("DSEC_E2B_ONLY"))...)
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
	if *update {
		write(t, matrix(methods, got))
	}
	compare(t, judged, methods, got)
	left, err := n.Client.Sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{})
	if err != nil || len(left.GetSandboxes()) > 0 {
		t.Errorf("sandboxes are left: %v, %v", left.GetSandboxes(), err)
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
			fmt.Fprintf(&b, " %s |", cell(got[m][p.String()]))
		}
		b.WriteString("\n")
	}
	return b.String()
}

const begin, end = "<!-- matrix: go test ./test/e2b -update -->\n", "<!-- end of matrix -->"

// cell is a result in the table.
func cell(r result) string {
	if r.Outcome == "" || r.Outcome == "absent" {
		return "–"
	}
	return r.Outcome
}

func table(t *testing.T) (head, rows, tail string) {
	t.Helper()
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	rows, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the matrix", docs)
	}
	return head, rows, tail
}

func write(t *testing.T, rows string) {
	t.Helper()
	head, _, tail := table(t)
	if err := os.WriteFile(docs, []byte(head+begin+rows+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// compare holds what came of it against the table.
func compare(t *testing.T, judged []pack, methods []string, got map[string]map[string]result) {
	t.Helper()
	_, rows, _ := table(t)
	said := map[string]map[string]string{} // by method, by package
	var columns []string
	for line := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		m := map[string]string{}
		for i, c := range cells[1:] {
			m[columns[i+1]] = c
		}
		said[strings.Trim(cells[0], "`")] = m
	}
	for _, m := range methods {
		for _, p := range judged {
			if r := got[m][p.String()]; said[m][p.String()] != cell(r) {
				t.Errorf("%s of %s: %s says %q, it is %q (-update writes it): %s", m, p, docs, said[m][p.String()], cell(r), r.Note)
			}
		}
	}
}
