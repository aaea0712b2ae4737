package fullvm_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node/nodetest"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// netFactory makes machines with an agent that may have a network.
func netFactory(t *testing.T) (sandboxtest.Factory, *nodetest.Internet) {
	f := agentFactory(node(t, agentDisk(t), "&agent=true"))
	inet := &nodetest.Internet{Close: true}
	inner, config := f.Backend, f.Config
	f.Backend = func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
		net := inet.Node
		if net == nil {
			net = inet.Open(t, state)
		}
		d := inner(t, id, state).(*fullvm.Driver)
		d.UseNetwork(net)
		return d
	}
	f.Internet = func() *sandboxtest.Internet {
		return &sandboxtest.Internet{One: inet.One, Other: inet.Other, Known: inet.Node.Known}
	}
	f.Config = func(c *edge.Config) {
		config(c)
		if inet.Node != nil {
			compiler := inet.Node.Compiler()
			c.Network = &compiler
		}
	}
	return f, inet
}

// reachScript tells whether a server sends back what it gets.
func reachScript(to netip.AddrPort) string {
	return fmt.Sprintf("timeout 20 bash -c 'exec 3<>/dev/tcp/%s/%d && echo x >&3 && read -u 3 l && test $l = x' 2>/dev/null && echo reached || echo not reached", to.Addr(), to.Port())
}

// TestNetwork: what every backend with a network is asked, and names, the check of what they are reached as, and private
// networks.
func TestNetwork(t *testing.T) {
	slow(t)
	f, inet := netFactory(t)
	sandboxtest.RunNetwork(t, f)
	n := sandboxtest.Start(t, f, nil)
	site := inet.Inet.Site("one.example", networktest.V4(1), networktest.V6(1))
	inet.Inet.Site("other.example", networktest.Addrs(site.Addrs()...)) // a tenant of the same addresses
	a := n.Create(t, &dsecv1.SandboxSpec{PrivateNetwork: "job", NetworkName: "web",
		NetworkRules: []*dsecv1.NetworkRule{{Target: "one.example", Allow: true}, {Target: inet.One.String() + "/tcp", Allow: true}}})
	a.WantShell("getent ahosts one.example | grep -c RAW; getent hosts other.example || echo unknown", "2\nunknown\n")
	a.WantShell(reachScript(inet.One)+"; "+reachScript(inet.Other), "reached\nnot reached\n")
	b := n.Create(t, &dsecv1.SandboxSpec{PrivateNetwork: "job", NetworkName: "db"})
	b.Detach(&dsecv1.CommandSpec{Shell: "python3 -m http.server --bind :: 8000"})
	b.WantShell("until bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000' 2>/dev/null; do sleep 0.1; done", "")
	a.WantShell("timeout 60 bash -c 'exec 3<>/dev/tcp/db/8000' && echo reached", "reached\n")
	b.WantShell("getent hosts one.example || echo unknown", "unknown\n")

	// The place outlives the edge, and is there again after the system restarts.
	n.Restart()
	a.WantShell(reachScript(inet.One)+"; "+reachScript(inet.Other), "reached\nnot reached\n")
	const boot = "cat /proc/sys/kernel/random/boot_id"
	first := string(a.Shell(boot).Stdout)
	a.Detach(&dsecv1.CommandSpec{Shell: "sync; sleep 1; echo b >/proc/sysrq-trigger"})
	sandboxtest.Eventually(t, "the system is back, with its network", func() bool {
		r, err := n.Commands.Exec(a.Ctx, &dsecv1.ExecRequest{SandboxId: a.ID, Command: &dsecv1.CommandSpec{Shell: boot + "; " + reachScript(inet.One)}})
		return err == nil && strings.HasSuffix(string(r.Stdout), "\nreached\n") && !strings.HasPrefix(string(r.Stdout), first)
	})
}
