// Package iam knows who calls: it makes, checks and revokes API keys.
//
// A key is a public id and a secret of 160 random bits, written dsec_<id>_<secret> (or e2b_<hexadecimal> for
// clients that insist on that shape). The engine keeps the id, a name and the SHA-256 of the whole key: nothing
// from which the key could be made again; a slow hash would add nothing against 160 bits.
//
// Every API server holds all keys in memory and follows the engine by a watch, so that a check costs no round
// trip and a revocation takes effect within a second. While the engine cannot be reached, what is in memory goes
// on for Options.Grace and no longer.
package iam
