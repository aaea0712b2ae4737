// Package sandbox is the vocabulary of DSec: what a sandbox is asked to be (Spec), the states it goes
// through (State), the way it ends (Failure), and the seam that every kind of machine implements (Backend).
//
// # Words
//
// A Spec is a plain value. A Backend turns it into an Instance: a running machine with a dsec-init inside,
// reached through a channel that the edge dials. The edge owns the sandbox's record; a Backend owns the
// machine's parts (processes, mounts, cgroups, disks) and can find and remove all of them after a crash.
//
// # Lifecycle
//
//	Creating -> Running <-> Paused -> Stopping -> Stopped
//
// Every state has a way to Stopped. An instance that ended is never started again under the same id.
//
// What it is not: the package does no I/O, and knows nothing of HTTP, cgroups or QEMU.
package sandbox
