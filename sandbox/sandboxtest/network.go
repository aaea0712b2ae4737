package sandboxtest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// Internet is what the sandboxes of a driver with a network may reach.
type Internet struct {
	// One and Other are TCP servers at public addresses that send back what they get.
	One, Other netip.AddrPort
	// Known lists the sandboxes whose links are there.
	Known func() []string
}

// reached is what a script prints that reached an address, or did not.
const reached, unreached = "reached\n", "not reached\n"

// reach tells whether a server can be spoken to, within a bound.
func reach(a netip.AddrPort) string {
	return fmt.Sprintf("timeout 20 bash -c 'exec 3<>/dev/tcp/%s/%d && echo x >&3 && read -u 3 l && test $l = x' 2>/dev/null && echo reached || echo not reached", a.Addr(), a.Port())
}

func networkRules(targets ...string) (out []*dsecv1.NetworkRule) {
	for _, t := range targets {
		target, deny := strings.CutPrefix(t, "!")
		out = append(out, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	return out
}

// network: what sandboxes may reach, by addresses: drivers are told programs, names are the node's affair.
func (s *suite) network(t *testing.T) {
	if !s.caps.Network {
		s.noNetwork(t)
		return
	}
	s.real(t)
	if s.Factory.Internet == nil {
		t.Fatal("the driver can have networks, and its factory makes no internet")
	}
	inet := s.Factory.Internet()
	one, other := inet.One.String()+"/tcp", inet.Other.String()+"/tcp"
	set := func(b *Box, want int64, targets ...string) {
		t.Helper()
		r, err := s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules(targets...)})
		if err != nil {
			t.Fatalf("set %q: %v", targets, err)
		}
		if n := r.GetNetwork(); n.GetGenerationAsked() != want || n.GetGenerationApplied() != want || len(n.GetRules()) != len(targets) {
			t.Errorf("set %q: %v, want generation %d", targets, n, want)
		}
	}
	t.Run("DefaultDeny", func(t *testing.T) {
		for _, rules := range [][]*dsecv1.NetworkRule{nil, networkRules("none"), networkRules("!npm")} {
			b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: rules})
			b.WantShell("ls /sys/class/net", "lo\n")
			b.WantShell(reach(inet.One), unreached)
			if n := b.Get().GetNetwork(); n != nil {
				t.Errorf("with rules %v it has the network %v", rules, n)
			}
			_, err := s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules(one)})
			WantCode(t, err, connect.CodeFailedPrecondition, "was created without a network", "create it with a rule that allows something")
			b.WantShell(reach(inet.One), unreached)
		}
	})
	t.Run("Addresses", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)})
		b.WantShell(reach(inet.One), reached)
		b.WantShell(reach(inet.Other), unreached)
		b.WantShell(reach(netip.AddrPortFrom(inet.One.Addr(), inet.One.Port()+1)), unreached)
		wide := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(netip.PrefixFrom(inet.Other.Addr(), 24).Masked().String(), "!"+one)})
		wide.WantShell(reach(inet.Other), reached)
		wide.WantShell(reach(inet.One), unreached)
	})
	t.Run("Changes", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)})
		set(b, 2, other)
		b.WantShell(reach(inet.One), unreached)
		b.WantShell(reach(inet.Other), reached)
		_, err := s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules(one), IfGeneration: 1})
		WantCode(t, err, connect.CodeAborted, "generation 2 is in force")
		_, err = s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules(inet.One.Addr().String() + ":0/tcp")})
		WantCode(t, err, connect.CodeInvalidArgument, "port 0")
		b.WantShell(reach(inet.One), unreached)
		set(b, 3, "none")
		b.WantShell(reach(inet.Other), unreached)
		set(b, 4, one, other)
		b.WantShell(reach(inet.One)+";"+reach(inet.Other), reached+reached)
	})
	t.Run("Paused", func(t *testing.T) {
		if !s.caps.Pause {
			t.Skip("the driver pauses nothing")
		}
		b, same := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)}), s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)})
		for _, p := range []*Box{b, same} {
			if _, err := s.Sandboxes.PauseSandbox(p.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: p.ID}); err != nil {
				t.Fatal(err)
			}
		}
		set(b, 2, other)
		if got := b.Get().State; got != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			t.Errorf("a change made it %v", got)
		}
		for _, p := range []*Box{b, same} {
			if _, err := s.Sandboxes.ResumeSandbox(p.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: p.ID}); err != nil {
				t.Fatal(err)
			}
		}
		b.WantShell(reach(inet.One)+";"+reach(inet.Other), unreached+reached)
		same.WantShell(reach(inet.One)+";"+reach(inet.Other), reached+unreached)
	})
	t.Run("Neighbours", func(t *testing.T) {
		a, b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules("open")}), s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules("open")})
		address := strings.Fields(string(a.Shell("hostname -I").Stdout))
		if len(address) == 0 {
			t.Fatal("it has no address")
		}
		a.Detach(&dsecv1.CommandSpec{Shell: "python3 -m http.server --bind :: 8000"})
		to := func(address string) string {
			return fmt.Sprintf("timeout 20 bash -c 'exec 3<>/dev/tcp/%s/8000' 2>/dev/null && echo reached || echo not reached", address)
		}
		a.WantShell("until "+strings.TrimSuffix(to(address[0]), " || echo not reached")+"; do sleep 0.05; done", reached)
		for _, x := range address {
			b.WantShell(to(x), unreached)
		}
	})
	t.Run("Removal", func(t *testing.T) {
		b, killed := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)}), s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)})
		for _, x := range []*Box{b, killed} {
			if !slices.Contains(inet.Known(), x.ID) {
				t.Errorf("the network does not know %s", x.ID)
			}
		}
		b.Stop()
		_, err := s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules(other)})
		WantCode(t, err, connect.CodeFailedPrecondition, "stopped")
		if s.Factory.KillInit != nil {
			s.Factory.KillInit(t, s.Backend, sandbox.ID(killed.ID))
			killed.AwaitEnd()
		} else {
			killed.Stop()
		}
		for _, x := range []*Box{b, killed} {
			Eventually(t, "the network forgets "+x.ID, func() bool { return !slices.Contains(inet.Known(), x.ID) })
		}
	})
	t.Run("Restart", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules(one)})
		set(b, 2, other)
		s.Restart()
		b.WantShell(reach(inet.One)+";"+reach(inet.Other), unreached+reached)
		if n := b.Get().GetNetwork(); n.GetGenerationApplied() != 2 || n.GetGenerationAsked() != 2 {
			t.Errorf("after the restart: %v", n)
		}
		set(b, 3, one)
		b.WantShell(reach(inet.One)+";"+reach(inet.Other), reached+unreached)
	})
}

// noNetwork: a driver without networks says so, and takes what needs none.
func (s *suite) noNetwork(t *testing.T) {
	for _, target := range []string{"pypi", "open", "203.0.113.0/24"} {
		r, err := s.Creator.CreateResolved(Context(t), s.Request(&dsecv1.SandboxSpec{NetworkRules: networkRules(target)}))
		WantCode(t, err, connect.CodeUnimplemented, target, "network=on")
		if r != nil {
			t.Errorf("created: %v", r)
		}
	}
	b := s.Create(t, &dsecv1.SandboxSpec{NetworkRules: networkRules("!pypi")})
	if n := b.Get().GetNetwork(); n != nil {
		t.Errorf("it has the network %v", n)
	}
	_, err := s.Sandboxes.SetNetwork(b.Ctx, &dsecv1.SetNetworkRequest{SandboxId: b.ID, Rules: networkRules("pypi")})
	WantCode(t, err, connect.CodeFailedPrecondition, "without a network")
	r, err := s.Sandboxes.ExplainNetwork(b.Ctx, &dsecv1.ExplainNetworkRequest{SandboxId: b.ID, Host: "pypi.org"})
	if err != nil || r.GetAllowed() || !strings.Contains(r.GetWhy(), "loopback only") {
		t.Errorf("explain: %v, %v", r, err)
	}
}
