// Package node puts the network of one node together: the router and its links (policy/network/link), enforcement
// (policy/network/datapath), the resolver (policy/network/dns) and the checking proxy (policy/network/proxy). It knows
// sandboxes by slot and key; what they may reach is a compiled network.Program that it is handed.
//
// A link is made ahead of its use: Attach when a shell is made (everything is denied), Set when a sandbox takes the
// shell and whenever its policy changes, Detach when it is gone. Programs live in this process; a process that takes
// over after a crash sets those of the sandboxes that it adopts, and sweeps the rest. Packets are judged by
// the kernel meanwhile, by the policies that were in force, and checked connections by the process that has them
// (policy/network/netproxy), where it is not this one; names do not resolve.
package node
