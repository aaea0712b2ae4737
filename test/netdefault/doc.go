// Package netdefault tests which of several nodes of one host has its network for sandboxes, where nobody says: the first, until
// it ends or is killed. Nodes are whole, in a network namespace that is the tests' own.
package netdefault
