package microvm_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/edge"
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
		net := inet.Open(t, state)
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

type internet struct{ nodetest.Internet }

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
