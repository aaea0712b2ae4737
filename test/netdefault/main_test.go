package netdefault

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/networktest"
)

const (
	// binEnv names the directory of dsec and dsec-init, built once.
	binEnv = "DSEC_TEST_NETDEFAULT_BIN"
	base   = "debian"
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dsec-bin-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		return networktest.Alone(func() error {
			for _, p := range []string{"dsec", "dsec-init"} {
				cmd := exec.Command("go", "build", "-o", filepath.Join(dir, p), "github.com/opendsec/dsec/cmd/"+p)
				cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("build %s: %w\n%s", p, err, out)
				}
			}
			if _, err := testkit.DebianBase(context.Background()); err != nil {
				return err
			}
			return os.Setenv(binEnv, dir)
		}, m.Run)
	}())
}

// host is a machine on which several nodes run.
type host struct {
	t   *testing.T
	dir string
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	dir, err := os.MkdirTemp("", "dsnd-") // a short path: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := netlink.LinkByName("dsec-up"); err == nil {
			t.Error("the uplink is left")
		}
		os.RemoveAll(dir)
	})
	return &host{t, dir}
}

// node is one of them.
type node struct {
	*testkit.Node
	t     *testing.T
	name  string
	state string
}

// start starts a node with no word about networks but what args say. It is ended with the test, if it is not before.
func (h *host) start(name string, args ...string) (*node, error) {
	n := &node{t: h.t, name: name, state: filepath.Join(h.dir, name)}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	n.Node, err = testkit.StartNode(ctx, filepath.Join(os.Getenv(binEnv), "dsec"), n.state,
		append([]string{"--opt", "resolver=192.0.2.1", "--opt", "warm=4", "--opt", "pool=256m"}, args...)...)
	return n, err
}

func (h *host) up(name string, args ...string) *node {
	h.t.Helper()
	n, err := h.start(name, args...)
	if err != nil {
		h.t.Fatalf("start node %s: %v", name, err)
	}
	h.t.Cleanup(func() {
		if h.t.Failed() {
			b, _ := os.ReadFile(filepath.Join(n.state, "log", "edge.log"))
			h.t.Logf("edge of %s:\n%s", name, b[max(0, len(b)-3000):])
		}
		n.down()
	})
	return n
}

// down ends the node; nothing is left of it. A second time it does nothing.
func (n *node) down() {
	n.t.Helper()
	if n.Node == nil {
		return
	}
	left, err := n.Stop()
	if err != nil || len(left) > 0 {
		n.t.Errorf("end node %s: left %q, %v", n.name, left, err)
	}
	n.Node = nil
}

// wantNetwork fails unless the node has a network, or says why it has none with all of the words.
func (n *node) wantNetwork(has bool, why ...string) {
	n.t.Helper()
	text, err := n.Run(n.t.Context(), "status", "--state", n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	if has != strings.Contains(text, "network: rules are enforced by") || has == strings.Contains(text, "network: sandboxes have loopback only") {
		n.t.Errorf("node %s: want a network: %v\n%s", n.name, has, text)
	}
	log, err := os.ReadFile(filepath.Join(n.state, "log", "edge.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, w := range why {
		if !strings.Contains(text, w) || !strings.Contains(string(log), w) {
			n.t.Errorf("node %s does not say %q:\n%s", n.name, w, text)
		}
	}
}

// importBase brings in what sandboxes are made of.
func (n *node) importBase() {
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
	if _, err := n.Client.UploadLayer(n.t.Context(), client.Upload{Kind: "base", Name: base}, f, nil); err != nil {
		n.t.Fatal(err)
	}
}

// create makes a sandbox with rules like "pypi" and "!npm".
func (n *node) create(rules ...string) (string, error) {
	spec := &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: base},
		Limits: &dsecv1.Limits{MemoryBytes: 128 << 20, Pids: 64, DiskBytes: 32 << 20}}
	for _, r := range rules {
		target, deny := strings.CutPrefix(r, "!")
		spec.NetworkRules = append(spec.NetworkRules, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	made, err := n.Client.Create(n.t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec})
	if err != nil {
		return "", err
	}
	return made[0].GetId(), nil
}

// links are the interfaces that a sandbox sees.
func (n *node) links(id string) string {
	n.t.Helper()
	r, err := n.Client.Commands.Exec(n.t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Shell: "cut -d: -f1 -s /proc/net/dev | tr -d ' \n'"}})
	if err != nil {
		n.t.Fatal(err)
	}
	return string(r.GetStdout())
}

// processes are the node's own by role, "up" among them.
func (n *node) processes() map[string]int {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.state, "run", "up.json"))
	var up struct {
		PID   int `json:"pid"`
		Roles []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"roles"`
	}
	if err == nil {
		err = json.Unmarshal(b, &up)
	}
	if err != nil || up.PID < 2 {
		n.t.Fatalf("processes of %s: %d, %v", n.name, up.PID, err)
	}
	out := map[string]int{"up": up.PID}
	for _, r := range up.Roles {
		out[r.Name] = r.PID
	}
	return out
}

// crash kills every process of the node at once: roles, what holds descriptors, what starts them again.
func (n *node) crash() {
	n.t.Helper()
	p := n.processes()
	n.kill(p["up"]) // first: it starts the others again
	for _, pid := range p {
		n.kill(pid)
	}
}

// kill kills a process and waits for its end.
func (n *node) kill(pid int) {
	n.t.Helper()
	if pid < 2 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		n.t.Fatal(err)
	}
	eventually(n.t, "a killed process ends", func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || bytes.Contains(b, []byte(") Z "))
	})
}

// again kills the edge and waits until another serves.
func (n *node) again() {
	n.t.Helper()
	before := n.processes()["edge"]
	n.kill(before)
	eventually(n.t, "the edge is started again", func() bool {
		p := n.processes()["edge"]
		if p == 0 || p == before {
			return false
		}
		_, err := n.Run(n.t.Context(), "status", "--state", n.state)
		return err == nil
	})
}

// dsecInit is the process of a sandbox's dsec-init.
func (n *node) dsecInit(id string) int {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.state, "run", "shells", id, "record.json"))
	var r struct {
		PID int `json:"pid"`
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if err == nil {
		err = json.Unmarshal(lines[len(lines)-1], &r)
	}
	if err != nil || r.PID < 2 {
		n.t.Fatalf("dsec-init of %s: %d, %v", id, r.PID, err)
	}
	return r.PID
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
