// Package network tests the networks of sandboxes on whole nodes: programs of the Debian base inside, a small internet of
// network namespaces outside (policy/network/networktest), and everything of the platform between them. The package's
// process has a network namespace of its own, which plays the node's host.
package network
