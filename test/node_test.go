package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
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

// node is a node of this test's own.
type node struct {
	*testkit.Node
	t     *testing.T
	state string
	args  []string
}

// base is the name of the Debian base on every node here.
const base = "debian"

// startNode starts a node with the Debian base; it is stopped, and nothing of it may be left, when the test ends.
func startNode(t *testing.T, args ...string) *node {
	t.Helper()
	return startNodeAt(t, "", append([]string{"--opt", "pool=2g"}, args...)...)
}

// startNodeAt is startNode with its state in a directory that the caller chose ("": one of its own), and without
// the size of the pool.
func startNodeAt(t *testing.T, state string, args ...string) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	work, err := os.MkdirTemp("", "dst-") // a short path: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	if state == "" {
		state = filepath.Join(work, "s")
	}
	// A port of its own that stays the same when the node is started again.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	n := &node{t: t, state: state, args: append([]string{"--listen", addr, "--opt", "warm=8", "--opt", "network=off"}, args...)}
	n.up()
	t.Cleanup(func() {
		left, err := n.Stop()
		if err != nil {
			t.Errorf("stop the node: %v", err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(n.state, "log", "*.log"))
			for _, l := range logs {
				if b, err := os.ReadFile(l); err == nil {
					t.Logf("%s:\n%s", filepath.Base(l), b[max(0, len(b)-3000):])
				}
			}
		}
		os.RemoveAll(work)
	})
	tar, err := testkit.DebianBase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := n.Client.UploadLayer(t.Context(), client.Upload{Kind: "base", Name: base}, f, nil); err != nil {
		t.Fatalf("import the base: %v", err)
	}
	return n
}

// up starts the node, again after it was killed.
func (n *node) up() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	started, err := testkit.StartNode(ctx, filepath.Join(bin, "dsec"), n.state, n.args...)
	if err != nil {
		n.t.Fatalf("start the node: %v", err)
	}
	n.Node = started
}

// spec asks for a small sandbox.
func spec() *dsecv1.SandboxSpec {
	return &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: base},
		Limits:      &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 1000, Pids: 256, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		Labels:      map[string]string{"job": "test"},
	}
}

// create makes n sandboxes.
func (n *node) create(count int, edit func(*dsecv1.SandboxSpec)) []string {
	n.t.Helper()
	s := spec()
	if edit != nil {
		edit(s)
	}
	boxes, err := n.Client.Create(n.t.Context(), &dsecv1.CreateSandboxRequest{Spec: s, Count: int32(count)})
	if err != nil {
		n.t.Fatal(err)
	}
	ids := make([]string, len(boxes))
	for i, b := range boxes {
		ids[i] = b.GetId()
	}
	return ids
}

// exec runs a shell command to its end.
func (n *node) exec(id, shell string) (*dsecv1.ExecResponse, error) {
	timeout := 60.0
	return n.Client.Commands.Exec(n.t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Shell: shell, TimeoutSeconds: &timeout}})
}

// must runs a shell command that has to succeed, and returns its output.
func (n *node) must(id, shell string) string {
	n.t.Helper()
	r, err := n.exec(id, shell)
	if err != nil {
		n.t.Fatalf("%s: %v", shell, err)
	}
	if r.GetCommand().GetResult().GetExitCode() != 0 {
		n.t.Fatalf("%s: %v\n%s%s", shell, r.GetCommand().GetResult(), r.GetStdout(), r.GetStderr())
	}
	return string(r.GetStdout())
}

// processes are the node's processes by role; "up" is the supervisor.
func (n *node) processes() map[string]int {
	n.t.Helper()
	text, err := n.Run(n.t.Context(), "status", "--json", "--state", n.state)
	var st struct {
		Up struct {
			PID   int `json:"pid"`
			Roles []struct {
				Name string `json:"name"`
				PID  int    `json:"pid"`
			} `json:"roles"`
		} `json:"up"`
	}
	// It fails while the edge does not answer yet, but knows the processes all the same.
	if jerr := json.Unmarshal([]byte(text), &st); jerr != nil || st.Up.PID == 0 {
		n.t.Fatalf("status: %v\n%s", errors.Join(err, jerr), text)
	}
	out := map[string]int{"up": st.Up.PID}
	for _, r := range st.Up.Roles {
		out[r.Name] = r.PID
	}
	return out
}

// kill9 kills processes of the node.
func (n *node) kill9(pids ...int) {
	n.t.Helper()
	for _, p := range pids {
		if p == 0 {
			continue // it is being started again just now
		}
		if p < 2 {
			n.t.Fatalf("process %d", p)
		}
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			n.t.Fatal(err)
		}
	}
}

// config is how to reach the node.
func (n *node) config() client.Config {
	n.t.Helper()
	cfg, err := client.ReadConfig(filepath.Join(n.state, "client.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	return cfg
}

// initPIDs are the host's ids of a sandbox's dsec-init.
func (n *node) initPIDs(id string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(n.state, "run", "shells", id, "record.json"))
	if err != nil {
		return nil, err
	}
	var r struct {
		PID int `json:"pid"`
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	err = json.Unmarshal(lines[len(lines)-1], &r)
	return []int{r.PID}, err
}
