// Package edge is the node: it owns the sandboxes of one machine and answers for them.
//
// # Words
//
// A box is one sandbox as the edge keeps it: its record (package record), its lifecycle (package lifecycle),
// the machine (sandbox.Instance) and the channel to its dsec-init (aether.Conn). A command belongs to its box,
// not to who started it. A leftover is the control group of an ended command in which something still runs.
//
// # How things go
//
//	CreateResolved -> check -> keys -> admission -> record -> Backend.Create -> record (ready) -> answer
//	a request      -> enter (the gate: find, refuse, resume, hold) -> channel -> leave
//	a command      -> record -> Conn.Start -> output into the record -> exit -> record -> who waits
//	an end         -> Machine says stop -> record -> Instance.Destroy -> commands end -> record -> retained
//
// The record is written before anyone is told. So an edge may be killed at any instant: the next one reads the
// records, finds the machines (Backend.Recover), asks each dsec-init what it runs (List) and goes on with each
// command's output at the offset where the record ends (Resume). What was half made is swept.
//
// # Time
//
// Lifetimes are reckoned in time since boot; the wall clock is only shown. One goroutine wakes all boxes. An
// idle box costs the channel's reader and nothing else.
//
// # Bounds
//
// Creations wait in a bounded queue; a box bounds its running commands, its sessions and what waits in each;
// output is bounded by the record; followers of events that do not keep up are cut off and told where to go
// on. Streams to slow clients read from the record and hold nobody up.
//
// What it is not: it authenticates nobody and resolves no names; API servers do, and speak to it over a socket
// that only they can open. It knows nothing of cgroups, mounts or processes; drivers do.
package edge
