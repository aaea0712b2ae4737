package lazy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/internal/testkit"
	lazylayer "github.com/opendsec/dsec/layer/lazy"
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

const (
	bucket = "layers"
	base   = "debian"
	// timeout is the store's in these tests.
	timeout = 4 * time.Second
)

// node is a node whose layers lie in an S3 service.
type node struct {
	*testkit.Node
	t     *testing.T
	s3    *testkit.S3
	state string
	args  []string
}

// start starts service and node, with the Debian base in the store and nothing of it in the node's cache.
func start(t *testing.T, args ...string) *node {
	t.Helper()
	n, work := prepare(t)
	var err error
	if n.s3, err = testkit.StartS3(t.Context(), filepath.Join(work, "s3"), bucket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.s3.Stop(); err != nil {
			t.Error(err)
		}
	})
	keys := filepath.Join(work, "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", n.s3.Access, n.s3.Secret)
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.begin(append([]string{"--opt", "store-timeout=" + timeout.String(),
		"--opt", fmt.Sprintf("store=s3://%s/team?endpoint=%s&credentials=%s", bucket, n.s3.Endpoint, keys)}, args...)...)
	return n
}

// prepare makes directories for a node that reads on demand.
func prepare(t *testing.T) (n *node, work string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	if err := fuse.Probe(); err != nil {
		t.Skip(err)
	}
	work, err := os.MkdirTemp("", "dsl-") // a short path: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	return &node{t: t, state: filepath.Join(work, "s")}, work
}

// begin starts the node for the first time, and brings the base in.
func (n *node) begin(args ...string) {
	t := n.t
	t.Helper()
	// A port of its own that stays the same when the node is started again.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	n.args = append([]string{"--listen", addr, "--opt", "warm=4", "--opt", "network=off", "--opt", "pool=1g"}, args...)
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
			for _, role := range []string{"blobd", "hold", "edge"} {
				if b, err := os.ReadFile(filepath.Join(n.state, "log", role+".log")); err == nil {
					t.Logf("%s:\n%s", role, b[max(0, len(b)-3000):])
				}
			}
		}
	})
	n.bring()
}

// bring imports the base.
func (n *node) bring() *dsecv1.ImportLayerResponse {
	n.t.Helper()
	tar, err := testkit.DebianBase(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	f, err := os.Open(tar)
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	r, err := n.Client.UploadLayer(n.t.Context(), client.Upload{Kind: "base", Name: base}, f, nil)
	if err != nil {
		n.t.Fatalf("import the base: %v", err)
	}
	return r
}

// up starts the node, again after it was stopped.
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

// create makes a sandbox.
func (n *node) create() string {
	n.t.Helper()
	boxes, err := n.Client.Create(n.t.Context(), &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: base},
		Limits:      &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 1000, Pids: 256, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	return boxes[0].GetId()
}

// exec runs a shell command to its end.
func (n *node) exec(id, shell string) (*dsecv1.ExecResponse, error) {
	limit := 90.0
	return n.Client.Commands.Exec(n.t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Shell: shell, TimeoutSeconds: &limit}})
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

// ends runs a shell command and returns the kind of its end and its blame.
func (n *node) ends(id, shell string) (string, dsecv1.Blame) {
	n.t.Helper()
	r, err := n.exec(id, shell)
	if err != nil {
		n.t.Fatalf("%s: %v", shell, err)
	}
	end := r.GetCommand().GetResult().GetEnd()
	n.t.Logf("%s: %s: %s %s", shell, end.GetKind(), end.GetMessage(), r.GetStderr())
	return end.GetKind(), end.GetBlame()
}

// events are the store faults among a sandbox's events, one a line.
func (n *node) events(id string) string {
	n.t.Helper()
	stream, err := n.Client.Sandboxes.StreamEvents(n.t.Context(), &dsecv1.StreamEventsRequest{SandboxId: id})
	if err != nil {
		return err.Error() // the edge may be away for a moment
	}
	defer stream.Close()
	var out []string
	for stream.Receive() {
		if ev := stream.Msg().GetEvent(); ev.GetType() == "store_fault" {
			out = append(out, fmt.Sprintf("%s name=%s what=%s count=%s", ev.GetType(), ev.Attributes["name"], ev.Attributes["what"], ev.Attributes["count"]))
		}
	}
	return strings.Join(out, "\n")
}

// role is the process of a role.
func (n *node) role(name string) int {
	n.t.Helper()
	text, err := n.Run(n.t.Context(), "status", "--json", "--state", n.state)
	var st struct {
		Up struct {
			Roles []struct {
				Name string `json:"name"`
				PID  int    `json:"pid"`
			} `json:"roles"`
		} `json:"up"`
	}
	if jerr := json.Unmarshal([]byte(text), &st); jerr != nil {
		n.t.Fatalf("status: %v\n%s", errors.Join(err, jerr), text)
	}
	for _, r := range st.Up.Roles {
		if r.Name == name {
			return r.PID
		}
	}
	n.t.Fatalf("no role %s in %s", name, text)
	return 0
}

// kill9 kills a role; the node starts it again.
func (n *node) kill9(role string) {
	n.t.Helper()
	if err := syscall.Kill(n.role(role), syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
}

// ask asks blobd.
func (n *node) ask(path string, to any) error {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.state, "run", "blobd.sock"))
	}}}
	r, err := c.Get("http://blobd" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return json.NewDecoder(r.Body).Decode(to)
}

func (n *node) stats() lazylayer.Stats {
	n.t.Helper()
	var s lazylayer.Stats
	eventually(n.t, "blobd answers", func() bool { return n.ask("/v1/lazy/stats", &s) == nil })
	return s
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}
