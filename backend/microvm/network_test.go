package microvm_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/policy/network/node/nodetest"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// netFactory makes a driver whose machines may have a network. enforcer is "" for the best there is.
func netFactory(t *testing.T, warm int, enforcer string) (sandboxtest.Factory, *internet) {
	f := warmFactory(t, warm, t.TempDir())
	inet := &internet{Internet: nodetest.Internet{Close: true, Enforcer: enforcer}}
	inner, config := f.Backend, f.Config
	f.Backend = func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
		net := inet.Node
		if net == nil {
			net = inet.Open(t, state)
		}
		d := inner(t, id, state).(*microvm.Driver)
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

type internet struct {
	nodetest.Internet

	mu     sync.Mutex // guards events
	events []node.Event
}

// hear keeps events from here on.
func (i *internet) hear() {
	i.Events = func(e node.Event) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.events = append(i.events, e)
	}
}

func (i *internet) heard(is func(node.Event) bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.ContainsFunc(i.events, is)
}

// spec allows what the rules say.
func (i *internet) spec(rules ...string) *dsecv1.SandboxSpec {
	s := &dsecv1.SandboxSpec{}
	for _, r := range rules {
		target, deny := strings.CutPrefix(r, "!")
		s.NetworkRules = append(s.NetworkRules, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	return s
}

// reach is a command that tells whether a server sends back what it gets.
func (i *internet) reach(a netip.AddrPort) string {
	return fmt.Sprintf("timeout 20 bash -c 'exec 3<>/dev/tcp/%s/%d && echo x >&3 && read -u 3 l && test $l = x' 2>/dev/null && echo reached || echo not reached", a.Addr(), a.Port())
}

// TestNftables: the same where eBPF is refused.
func TestNftables(t *testing.T) {
	slow(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	f, _ := netFactory(t, 2, datapath.Nftables)
	sandboxtest.RunNetwork(t, f)
}

// TestNames: names, the check of what they are reached as, and private networks, from inside of machines.
func TestNames(t *testing.T) {
	slow(t)
	f, inet := netFactory(t, 1, "")
	n := sandboxtest.Start(t, f, nil)
	site := inet.Inet.Site("one.example", networktest.V4(1), networktest.V6(1))
	inet.Inet.Site("other.example", networktest.Addrs(site.Addrs()...)) // a tenant of the same addresses
	spec := inet.spec("one.example")
	spec.PrivateNetwork, spec.NetworkName = "job", "web"
	a := n.Create(t, spec)
	a.WantShell("getent ahosts one.example | grep -c RAW; getent hosts other.example || echo unknown", "2\nunknown\n")
	a.Write("/get.py", `import sys, urllib.request, urllib.error
try:
    r = urllib.request.urlopen(urllib.request.Request("http://one.example/", headers={"Host": sys.argv[1]}), timeout=60)
    print(r.status)
except urllib.error.HTTPError as e:
    print(e.code)
`)
	a.WantShell("python3 /get.py one.example; python3 /get.py other.example", "200\n403\n")
	b := n.Create(t, &dsecv1.SandboxSpec{PrivateNetwork: "job", NetworkName: "db"})
	b.Detach(&dsecv1.CommandSpec{Shell: "python3 -m http.server --bind :: 8000"})
	b.WantShell("until bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000' 2>/dev/null; do sleep 0.1; done", "")
	a.WantShell("timeout 60 bash -c 'exec 3<>/dev/tcp/db/8000' && echo reached", "reached\n")
	b.WantShell("getent hosts one.example || echo unknown", "unknown\n")
}

// TestHostile: what root in a machine sends by a packet socket.
func TestHostile(t *testing.T) {
	slow(t)
	f, inet := netFactory(t, 1, "")
	inet.hear()
	n := sandboxtest.Start(t, f, nil)
	site := inet.Inet.Site("", networktest.V4(1), networktest.V6(1), networktest.Unlisted())
	got := make(chan string, 100)
	for _, a := range site.Addrs() {
		pc, err := inet.Inet.ListenPacket("udp", netip.AddrPortFrom(a, 9000).String())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			b := make([]byte, 2048)
			for {
				n, _, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				got <- string(b[:n])
			}
		}()
		t.Cleanup(func() { pc.Close(); <-done })
	}
	b := n.Create(t, inet.spec(site.V4[0].String(), site.V6[0].String()))
	words := strings.Fields(string(b.Shell("cat /sys/class/net/eth0/address; hostname -I").Stdout))
	if len(words) != 3 {
		t.Fatalf("its addresses are %q", words)
	}
	hw, err := net.ParseMAC(words[0])
	if err != nil {
		t.Fatal(err)
	}
	l := lan{me: [6]byte(hw), gateway: link.DefaultPlan().GatewayMAC(), own4: netip.MustParseAddr(words[1]), own6: netip.MustParseAddr(words[2]), site4: site.V4[0], site6: site.V6[0]}
	frames := l.hostile()
	var lines strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&lines, "%x\n", f.bytes)
	}
	fmt.Fprintf(&lines, "%x\n", l.udp4(l.me, l.own4, "good"))
	b.Write("/frames", lines.String())
	b.Write("/send.py", `import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
for line in open("/frames"):
    s.send(bytes.fromhex(line))
`)
	b.WantShell("python3 /send.py && echo sent", "sent\n")
	select {
	case s := <-got:
		if s != "good" {
			t.Errorf("%q reached the server", s)
		}
	case <-time.After(time.Minute):
		t.Error("an ordinary frame did not reach the server")
	}
	for _, f := range frames {
		if f.reason == "" { // counted alone
			continue
		}
		sandboxtest.Eventually(t, "an event of "+f.name, func() bool {
			return inet.heard(func(e node.Event) bool { return e.Key == b.ID && e.Kind == "denied" && e.Why == f.reason })
		})
	}
	b.WantShell("ip link set eth0 mtu 9000 2>/dev/null || python3 -c \"import fcntl,socket,struct; fcntl.ioctl(socket.socket(), 0x8922, struct.pack('16si12x', b'eth0', 9000))\" 2>&1 | tail -1",
		"PermissionError: [Errno 1] Operation not permitted\n")
}
