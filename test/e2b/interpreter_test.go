package e2b

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
)

// TestCodeInterpreter makes the template by its recipe and runs the packages of the code interpreter on it.
func TestCodeInterpreter(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("set DSEC_TEST_SLOW=1: makes a base with IPython")
	}
	n := startNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	n.recipe(ctx, t, "hack/code-interpreter.sh")
	py, err := testkit.PythonPackages(ctx, "e2b-interpreter-py-2.11.5", "e2b-code-interpreter==2.11.5", "e2b==2.63.0")
	if err != nil {
		t.Fatal(err)
	}
	js, err := testkit.Cached(ctx, "e2b-interpreter-js-2.8.0", func(dir string) *exec.Cmd {
		return exec.Command("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", dir, "@e2b/code-interpreter@2.8.0", "e2b@2.51.0")
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range [][]string{{py, "testdata/interpreter.py"}, {"node", "testdata/interpreter.mjs", js}} {
		cmd := exec.CommandContext(ctx, run[0], run[1:]...)
		cmd.Env = n.env()
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "ok\n") {
			t.Errorf("%s: %v\n%s", run[1], err, out)
		}
	}
	// Code is run for nobody without the sandbox's token, although its ports are open.
	made := n.post(t, "/v2/sandboxes", `{"templateID":"code-interpreter-v1","timeout":60}`)
	id := between(made, `"sandboxID":"`, `"`)
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/execute", strings.NewReader(`{"code":"1"}`))
	req.Header.Set("E2b-Sandbox-Id", id)
	req.Header.Set("E2b-Sandbox-Port", "49999")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("code without a token: %s", resp.Status)
	}
	if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Error(err)
	}
	left, err := n.Client.Sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_RUNNING}})
	if err != nil || len(left.GetSandboxes()) > 0 {
		t.Errorf("sandboxes are left: %v, %v", left.GetSandboxes(), err)
	}
}

// recipe runs a script of the repository against the node.
func (n *node) recipe(ctx context.Context, t *testing.T, script string, args ...string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	key, err := n.Run(ctx, "key", "create", "--state", n.state)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, script), args...)
	cmd.Env = append(os.Environ(), "DSEC="+filepath.Join(bin, "dsec"), "DSEC_URL="+n.URL, "DSEC_API_KEY="+strings.TrimSpace(key))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// post sends a request of the control face and returns its answer.
func (n *node) post(t *testing.T, path, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", n.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("POST %s: %s %s %v", path, resp.Status, b, err)
	}
	return string(b)
}

// between is the text between two others, "" when it is not there.
func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}
