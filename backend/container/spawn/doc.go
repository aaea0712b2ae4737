// Package spawn makes the processes that become sandboxes. The edge has a large address space, and a clone
// into a new user namespace copies page tables and takes a page fault for each page written afterwards; so the
// cloning is done by a small process of its own, the spawner (`dsec-init spawner`), which reads requests from
// a socket pair and answers with a pidfd.
//
// The spawner ends when the edge does; the sandboxes it made go on and are adopted by the nearest subreaper.
package spawn
