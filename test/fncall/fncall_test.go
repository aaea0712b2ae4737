package fncall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
)

type writer []byte

func (w *writer) Write(b []byte) (int, error) { *w = append(*w, b...); return len(b), nil }

func bytesOf(s string) io.Reader { return strings.NewReader(s) }

func shell(code string) *dsecv1.CallRequest {
	return &dsecv1.CallRequest{Call: &dsecv1.CallSpec{Program: &dsecv1.Program{Runtime: "shell", Code: code}}}
}

// TestNode goes through what users do, on one node.
func TestNode(t *testing.T) {
	n := startNode(t)
	t.Run("command line", n.commandLine)
	t.Run("killed", n.killed)
	t.Run("cut", n.cut)
	t.Run("corpus", n.corpus)
	t.Run("refused", n.refused)
}

func (n *node) commandLine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for k := range 3 {
		write(fmt.Sprintf("cases/%d.in", k), fmt.Sprintln(k))
		write(fmt.Sprintf("cases/%d.out", k), fmt.Sprintln(2*k))
	}
	double := write("double.py", "import sys\nprint(2*int(input()), *sys.argv[1:])")
	odd := write("odd.c", "#include <stdio.h>\nint main(void){int x;scanf(\"%d\",&x);printf(\"%d\\n\",x<2?2*x:1);return 0;}")
	for name, c := range map[string]struct {
		stdin, args, out, errs string
		code                   int
	}{
		"input":         {"", "call python " + double + " --stdin " + filepath.Join(dir, "cases/2.in") + " -- a b", "4 a b\n", "", 0},
		"exit code":     {"echo out; echo err >&2; exit 7", "call shell -", "out\n", "err\n", 7},
		"signal":        {"kill -SEGV $$", "call shell -", "", "", 139},
		"time limit":    {"while :; do :; done", "call shell - --limit cpu=0.2", "", "timed_out (task): used its CPU time of 200ms up", 137},
		"output":        {"yes", "call shell - --limit output=1k", "y\ny\n", "output_limit (task)", 137},
		"compile error": {"int main() { return x; }", "call c -", "", "the program does not compile", 1},
		"flags":         {"int main() { return X; }", "call c - --flag -DX=5", "", "", 5},
		"unknown":       {"x", "call cobol -", "", "there are shell, python", 125},
		"GPU":           {"x", "call cuda -", "", "no GPU yet", 125},
		"no base":       {"x", "call go -", "", "go: no such program in this runtime", 127},
		"bad limit":     {"x", "call shell - --limit cores=2", "", "want cpu, wall, memory", 2},
		"low limit":     {"x", "call shell - --limit memory=1k", "", "want 8388608", 125},
		"usage":         {"", "call shell", "", "want a runtime and a program", 2},
		"accepted":      {"", "call python " + double + " --cases " + filepath.Join(dir, "cases"), "accepted (3 of 3 cases)", "", 0},
		"wrong":         {"", "call c " + odd + " --compare tokens --cases " + filepath.Join(dir, "cases"), "wrong_answer (2 of 3 cases)", "", 1},
		"no cases":      {"", "call python " + double + " --cases " + dir, "", "no cases in", 2},
		"batch": {`{"operationId":"one","call":{"program":{"runtime":"shell","code":"echo 1"}}}` + "\n" +
			`{"operationId":"two","submission":{"program":{"runtime":"python","code":"print(7)"},"cases":[{"expected":"Nwo="}]}}` + "\n",
			"call --batch -", `{"operationId":"two","result":{"verdict":"VERDICT_ACCEPTED"`, "", 0},
		"bad batch": {"{\"x\": 1}\n", "call --batch -", "", "line 1", 2},
		"runtimes":  {"", "runtime ls", "python  calls", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := n.dsec(c.stdin, strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
				t.Errorf("exit %d, want %d\nstdout %.600q, want %q\nstderr %.600q, want %q", code, c.code, out, c.out, errs, c.errs)
			}
		})
	}
}

// killed: whatever of the platform dies during a batch, every call is reported once, and none twice.
func (n *node) killed(t *testing.T) {
	const many = 600
	calls := make([]*dsecv1.CallRequest, many)
	for k := range calls {
		calls[k] = shell(fmt.Sprintf("sleep 0.01; echo %d", k))
	}
	seen := make([]int, many)
	got := 0
	err := n.Client.CallBatch(t.Context(), calls, func(k int, r *dsecv1.CallResult, err error) {
		seen[k]++
		got++
		if err != nil || string(r.GetStdout()) != fmt.Sprintln(k) {
			t.Errorf("call %d: %v, %v %q", k, err, r.GetEnd(), r.GetStdout())
		}
		switch got {
		case 50, 300:
			n.kill("edge")
		case 150:
			n.kill("apiserver")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, times := range seen {
		if times != 1 {
			t.Errorf("call %d was reported %d times", k, times)
		}
	}
}

// cut: who leaves a batch leaves nothing running.
func (n *node) cut(t *testing.T) {
	calls := make([]*dsecv1.CallRequest, 40)
	for k := range calls {
		calls[k] = shell("echo x; test " + fmt.Sprint(k) + " -lt 2 || sleep 15")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := n.Client.CallBatch(ctx, calls, func(int, *dsecv1.CallResult, error) { cancel() })
	if !errors.Is(err, context.Canceled) && connect.CodeOf(err) != connect.CodeCanceled {
		t.Fatalf("a batch that was cut: %v", err)
	}
	// What ran is given up soon, long before it would have ended by itself.
	ctx, cancel = context.WithTimeout(t.Context(), 14*time.Second)
	defer cancel()
	if _, err := n.Client.Call(ctx, shell("true")); err != nil {
		t.Fatal(err)
	}
}

// corpus: every kind of submission in every language gets its verdict.
func (n *node) corpus(t *testing.T) {
	subs, want := testkit.Submissions(72)
	err := n.Client.JudgeBatch(t.Context(), subs, func(k int, r *dsecv1.JudgeResult, err error) {
		if err == nil {
			err = want[k].Check(r)
		}
		if err != nil {
			t.Errorf("%s: %v", want[k].Name, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refused: what a request cannot be is said as the kind of error that it is.
func (n *node) refused(t *testing.T) {
	big := shell("x")
	big.Call.Stdin = make([]byte, 17<<20)
	for name, c := range map[string]struct {
		r    *dsecv1.CallRequest
		code connect.Code
	}{
		"too large":       {big, connect.CodeInvalidArgument},
		"empty":           {&dsecv1.CallRequest{}, connect.CodeNotFound},
		"negative limit":  {&dsecv1.CallRequest{Call: &dsecv1.CallSpec{Program: shell("x").Call.Program, Limits: &dsecv1.CallLimits{CpuSeconds: -1}}}, connect.CodeInvalidArgument},
		"unknown runtime": {&dsecv1.CallRequest{Call: &dsecv1.CallSpec{Program: &dsecv1.Program{Runtime: "x"}}}, connect.CodeNotFound},
	} {
		if _, err := n.Client.Call(t.Context(), c.r); connect.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	// One bad call does not spoil a batch.
	ends := map[int]error{}
	err := n.Client.CallBatch(t.Context(), []*dsecv1.CallRequest{shell("true"), {}, shell("true")}, func(k int, r *dsecv1.CallResult, err error) { ends[k] = err })
	if err != nil || len(ends) != 3 || ends[0] != nil || ends[1] == nil || ends[2] != nil {
		t.Errorf("%v, %v", ends, err)
	}
}
