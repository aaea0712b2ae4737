// Package apiserver is the only way in: it authenticates every request and passes it to where it belongs.
//
// It keeps no state about sandboxes. A sandbox id encodes its edge, and sandbox_id is field 1 of every request
// about one sandbox; so a request is forwarded as the bytes it came as, of whatever type, after a look at its
// first bytes (peek.go, forward.go). What concerns no single sandbox is answered here: creation (names are
// resolved and an edge is picked), lists and stops by label (asked of every edge and merged), layers and keys.
//
// An edge that does not answer makes a request fail as unavailable, never an empty list: unknown is not empty.
//
// Ports of sandboxes are served on an origin of their own (ports.go), where API keys and the platform's cookies
// mean nothing and are dropped.
//
// What it is not: it is no place for policy about a sandbox's life; the edge owns that.
package apiserver
