package fullvm

import "github.com/opendsec/dsec/policy/network/node"

// UseNetwork gives the driver a network, before its first machine.
func (d *Driver) UseNetwork(n *node.Network) { d.cfg.Network = n }
