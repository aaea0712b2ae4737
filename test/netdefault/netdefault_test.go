package netdefault

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/vishvananda/netlink"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/container"
)

// TestFirst: a plain node has a network, keeps little ready for it until somebody asks, and the rules of the paper's listing
// hold as they stand. The next node of the host does without, and says so wherever one would look.
func TestFirst(t *testing.T) {
	h := newHost(t)
	a := h.up("a")
	a.wantNetwork(true)
	a.importBase()
	linked := func() int {
		ids, err := container.Linked(a.state)
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	warm := func() int32 {
		r, err := a.Client.Node.GetNode(t.Context(), &dsecv1.GetNodeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetWarmShells()
	}
	eventually(t, "all shells are ready", func() bool { return warm() == 4+1 })
	if n := linked(); n != 1 {
		t.Errorf("%d shells have a link before anybody asked for one", n)
	}
	if id, err := a.create(); err != nil || a.links(id) != "lo" {
		t.Errorf("without rules: %v", err)
	}
	if n := linked(); n != 1 {
		t.Errorf("%d shells have a link after a sandbox without network", n)
	}
	id, err := a.create("!npm", "pypi")
	if err != nil {
		t.Fatal(err)
	}
	if got := a.links(id); got != "eth0lo" && got != "loeth0" {
		t.Errorf("interfaces %q", got)
	}
	eventually(t, "shells with a link are kept ready", func() bool { return linked() == 1+2 })

	b := h.up("b")
	b.wantNetwork(false, "dsec-up already", "that of the node on "+a.state+", which runs")
	b.importBase()
	if id, err := b.create("!npm"); err != nil || b.links(id) != "lo" {
		t.Errorf("without a network: %v", err)
	}
	_, err = b.create("pypi")
	if connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), a.state) || !strings.Contains(err.Error(), "loopback only") {
		t.Errorf("rules without a network: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(b.state, "run", "network")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files of a network that is none: %v, %v", left, err)
	}
	_, err = h.start("c", "--opt", "network=on")
	if err == nil || !strings.Contains(err.Error(), "dsec-up already") || !strings.Contains(err.Error(), a.state) {
		t.Errorf("a node that must have one: %v", err)
	}
	a.again() // what is killed and started again keeps what it has
	a.wantNetwork(true)
	if got := a.links(id); !strings.Contains(got, "eth0") {
		t.Errorf("interfaces %q", got)
	}
	b.again()
	b.wantNetwork(false, a.state)
	a.down()
	b.again()
	b.wantNetwork(true)
	if _, err := b.create("pypi"); err != nil {
		t.Errorf("with the network of one that has ended: %v", err)
	}
}

// TestOff: a node that is told to has no network, and leaves it to the next.
func TestOff(t *testing.T) {
	h := newHost(t)
	a := h.up("a", "--opt", "network=off")
	b := h.up("b", "--opt", "network=on")
	b.wantNetwork(true)
	if text, err := a.Run(t.Context(), "status", "--state", a.state); err != nil || !strings.Contains(text, "loopback only: it was started with --opt network=off") {
		t.Errorf("status: %v\n%s", err, text)
	}
	a.importBase()
	if _, err := a.create("pypi"); connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), "network=off") {
		t.Errorf("rules without a network: %v", err)
	}
}

// TestStranger: what has the uplink's name and is no node's is left alone.
func TestStranger(t *testing.T) {
	h := newHost(t)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "dsec-up"}, PeerName: "stranger"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	a := h.up("a")
	a.wantNetwork(false, "dsec-up already", "cannot be seen from here")
	if err := netlink.LinkDel(link); err != nil {
		t.Fatalf("the stranger is gone: %v", err)
	}
	a.again()
	a.wantNetwork(true)
}

// TestTogether: of nodes that start at once exactly one has the network.
func TestTogether(t *testing.T) {
	h := newHost(t)
	names := []string{"a", "b", "c"}
	nodes := make([]*node, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { nodes[i], errs[i] = h.start(name) })
	}
	wg.Wait()
	with := 0
	for i, n := range nodes {
		if errs[i] != nil {
			t.Errorf("node %s: %v", names[i], errs[i])
			continue
		}
		r, err := n.Client.Node.GetNode(t.Context(), &dsecv1.GetNodeRequest{})
		if err != nil {
			t.Error(err)
		} else if r.GetNetwork() != nil {
			with++
		} else if !strings.Contains(r.GetNetworkAbsent(), "dsec-up already") {
			t.Errorf("node %s has none: %q", n.name, r.GetNetworkAbsent())
		}
	}
	if with != 1 {
		t.Errorf("%d nodes have the network", with)
	}
	for _, n := range nodes {
		n.down()
	}
}

// TestKilled: the network of a node that was killed, whole, is another's as soon as no sandbox of it needs it, and not before.
// A node that takes over its own state has it again.
func TestKilled(t *testing.T) {
	h := newHost(t)
	a := h.up("a")
	a.importBase()
	id, err := a.create("pypi")
	if err != nil {
		t.Fatal(err)
	}
	a.crash()
	a = h.up("a")
	a.wantNetwork(true)
	if got := a.links(id); !strings.Contains(got, "eth0") {
		t.Errorf("interfaces of a sandbox that was taken over: %q", got)
	}
	a.crash()
	b := h.up("b")
	b.wantNetwork(false, "that of the node on "+a.state+", which has ended, but not 1 of its sandboxes")
	a.kill(a.dsecInit(id))
	b.again()
	b.wantNetwork(true)
	b.importBase()
	if _, err := b.create("pypi"); err != nil {
		t.Errorf("with the network of a dead node: %v", err)
	}
	a = h.up("a") // it finds its own gone
	a.wantNetwork(false, "that of the node on "+b.state)
	if s, err := a.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil || s.GetSandbox().GetState() != dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Errorf("the sandbox that was killed: %v, %v", s.GetSandbox().GetState(), err)
	}
	b.crash() // with its sandbox: nothing holds the network but that
	for _, n := range []*node{b, a} {
		n.down() // b's by a node that is started for that
	}
}
