package sandbox

import "context"

// NetworkPolicy is a policy that was compiled for a node: what a driver with networks takes is a *network.Program or
// *network.Member of policy/network. Equal digests mean equal policies.
type NetworkPolicy interface{ Digest() string }

// Networked is an optional ability of an Instance: changing what it may reach while it runs. When SetNetwork returns,
// the policy is in force and connections that it forbids are cut. A generation lower than the present one is
// ErrConflict; an instance that was created without a network is ErrFailedPrecondition. After Recover it must be called
// with the generation in force, or a later one: names and checked connections wait for it.
type Networked interface {
	SetNetwork(ctx context.Context, generation uint64, p NetworkPolicy) error
}
