package network

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/networktest"
)

const base = "debian"

// probe is a program that tells, in one word where it can, what a connection comes to.
//
//go:embed testdata/reach.py
var probe []byte

// world is a node between its sandboxes and a small internet.
type world struct {
	*testkit.Node
	t     *testing.T
	inet  *networktest.Internet
	here  *networktest.Namespace
	link  networktest.Link // the node's own, to the internet
	state string
	by    string // what enforces

	machines bool // sandboxes are microVMs
}

// start makes a world whose node's rules are enforced by one kind of datapath. When the test ends the node is stopped, and
// nothing of it may be left.
func start(t *testing.T, by string, opts ...string) *world {
	t.Helper()
	w := &world{t: t, inet: networktest.New(t), here: networktest.Here(t), by: by}
	w.link = w.inet.Join(w.here, "eth0")
	t.Cleanup(func() { // at once, for the next world
		if l, err := w.here.Netlink().LinkByName("eth0"); err == nil {
			_ = w.here.Netlink().LinkDel(l)
		}
	})
	// A host with IPv6 that forwards it, as an operator sets it up.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "dstn-") // a short path: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	w.state = filepath.Join(work, "s")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	flags := []string{"--opt", "network=" + by, "--opt", "resolver=" + networktest.ResolverV4.String(), "--opt", "warm=4", "--opt", "pool=2g"}
	for _, o := range opts {
		flags = append(flags, "--opt", o)
	}
	w.Node, err = testkit.StartNode(ctx, filepath.Join(os.Getenv(binEnv), "dsec"), w.state, flags...)
	if err != nil {
		t.Fatalf("start the node: %v", err)
	}
	t.Cleanup(func() {
		w.stop()
		os.RemoveAll(work)
	})
	debian, err := testkit.DebianBase(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.layer("base", base, debian)
	w.toolkit("probe", map[string][]byte{"/usr/local/bin/reach": probe, "/etc/ca.pem": w.inet.CA.PEM})
	return w
}

func (w *world) layer(kind, name, path string) {
	w.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := w.Client.UploadLayer(w.t.Context(), client.Upload{Kind: kind, Name: name}, f, nil); err != nil {
		w.t.Fatalf("import %s %s: %v", kind, name, err)
	}
}

// toolkit makes a layer of files.
func (w *world) toolkit(name string, files map[string][]byte) {
	w.t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for path, content := range files {
		h := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if err := tw.WriteHeader(h); err != nil {
			w.t.Fatal(err)
		}
		if _, err := tw.Write(content); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.Client.UploadLayer(w.t.Context(), client.Upload{Kind: "toolkit", Name: name}, &b, nil); err != nil {
		w.t.Fatalf("import toolkit %s: %v", name, err)
	}
}

// stop ends the node and looks for what it left.
func (w *world) stop() {
	left, err := w.Stop()
	if err != nil {
		w.t.Errorf("stop the node: %v", err)
	}
	if len(left) > 0 {
		w.t.Errorf("left behind: %q", left)
	}
	links, err := w.here.Netlink().LinkList()
	if err != nil {
		w.t.Error(err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; name == "eth0" || l.Type() != "veth" {
			continue
		} else {
			w.t.Errorf("left behind: interface %s", name)
		}
	}
	c, err := nftables.New()
	if err != nil {
		w.t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		w.t.Error(err)
	}
	for _, table := range tables {
		w.t.Errorf("left behind: nftables table %s", table.Name)
	}
	if w.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(w.state, "log", "*.log"))
		for _, l := range logs {
			if b, err := os.ReadFile(l); err == nil {
				w.t.Logf("%s:\n%s", filepath.Base(l), b[max(0, len(b)-3000):])
			}
		}
	}
}

// role is the process of a role, 0 while it is being started.
func (w *world) role(name string) int {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.state, "run", "up.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	var up struct {
		Roles []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"roles"`
	}
	if err := json.Unmarshal(b, &up); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range up.Roles {
		if r.Name == name {
			return r.PID
		}
	}
	return 0
}

// killEdge kills the edge and waits for the process that takes over.
func (w *world) killEdge(t *testing.T) {
	t.Helper()
	old := w.role("edge")
	if old < 2 {
		t.Fatalf("the edge is process %d", old)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another edge", func() bool { p := w.role("edge"); return p != 0 && p != old })
}

// eventually waits until ok, for at most a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(10 * time.Millisecond) // between looks
	}
}

// addr is an address and a port as a program takes them.
func addr(a netip.Addr, port string) string { return a.String() + " " + port }

// rules reads rules as they are written.
func rules(texts []string) []*dsecv1.NetworkRule {
	var out []*dsecv1.NetworkRule
	for _, t := range texts {
		target, deny := strings.CutPrefix(t, "!")
		out = append(out, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	return out
}
