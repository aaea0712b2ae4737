package linked

import (
	"fmt"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// SetPolicy puts a machine's slot under a policy, and into its private network where it is a member of one. Error:
// sandbox.ErrInvalid where it is no policy of this node's.
func SetPolicy(n *node.Network, slot int, id sandbox.ID, generation uint64, p sandbox.NetworkPolicy) error {
	prog, ok := p.(*network.Program)
	if m, member := p.(*network.Member); member {
		if err := n.Join(slot, string(id), m.Network, m.Name); err != nil {
			return err
		}
		prog, ok = m.Program, true
	}
	if !ok {
		return fmt.Errorf("network of %s: %w: machines take a *network.Program, not a %T", id, sandbox.ErrInvalid, p)
	}
	return n.Set(slot, string(id), generation, prog)
}
