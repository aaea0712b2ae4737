package fncall

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// bin holds dsec and dsec-init, built once.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dsec-bin-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bin = dir
		for _, p := range []string{"dsec", "dsec-init"} {
			cmd := exec.Command("go", "build", "-o", filepath.Join(dir, p), "github.com/opendsec/dsec/cmd/"+p)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// node is a node with a base for calls.
type node struct {
	*testkit.Node
	t     *testing.T
	state string
}

// startNode starts a node; with the test it is stopped, and nothing of it may be left.
func startNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	tar, err := testkit.DebianTree(t.Context(), testkit.CallPackages...)
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("/var/tmp", "dsf-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, state: filepath.Join(work, "s")}
	if n.Node, err = testkit.StartNode(t.Context(), filepath.Join(bin, "dsec"), n.state, "--opt", "pool=256m", "--opt", "warm=1", "--opt", "network=off", "--opt", "fncall=calls"); err != nil {
		os.RemoveAll(work)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := n.Stop()
		if err != nil {
			t.Errorf("stop the node: %v", err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if b, err := os.ReadFile(filepath.Join(n.state, "log", "edge.log")); err == nil && t.Failed() {
			t.Logf("edge.log:\n%s", b[max(0, len(b)-3000):])
		}
		os.RemoveAll(work)
	})
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := n.Client.UploadLayer(t.Context(), client.Upload{Kind: "base", Name: "calls"}, f, nil); err != nil {
		t.Fatal(err)
	}
	return n
}

// kill kills a role of the node; it is started again.
func (n *node) kill(role string) {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.state, "run", "up.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	var up struct {
		Roles []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"roles"`
	}
	if err := json.Unmarshal(b, &up); err != nil {
		n.t.Fatal(err)
	}
	for _, r := range up.Roles {
		if r.Name == role && r.PID > 0 {
			if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
				n.t.Fatalf("kill %s (%d): %v", role, r.PID, err)
			}
			return
		}
	}
	n.t.Fatalf("no role %s in %s", role, b)
}

// dsec runs the command-line client on the node; it returns output and exit code.
func (n *node) dsec(stdin string, args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	cfg, err := client.ReadConfig(filepath.Join(n.state, "client.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(bin, "dsec"), args...)
	cmd.Env = append(os.Environ(), "DSEC_URL="+cfg.URL, "DSEC_API_KEY="+cfg.Key)
	cmd.Stdin, cmd.Dir = bytesOf(stdin), n.t.TempDir()
	var out, errs writer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		n.t.Fatal(err)
	}
	return string(out), string(errs), cmd.ProcessState.ExitCode()
}
