// Package nursery forks commands. The nursery is one operating system thread of dsec-init that Go's runtime
// does not know: it runs an interpreter of a few dozen instructions, which executes scripts: arrays of raw
// system calls, prepared in memory outside the Go heap.
//
// Why a thread of its own: membership of cgroup v1 groups, capability bounding set and seccomp filter belong to
// a thread and are inherited by what it forks. So the nursery is confined once, and each command's start costs
// nothing for it. Why not a goroutine locked to a thread: between fork and exec the kernel suspends the forking
// thread (CLONE_VFORK), and an exec from an image that is read on demand can take seconds; dsec-init must go on
// meanwhile. Why an interpreter: the child shares dsec-init's memory until it execs and must neither allocate
// nor touch a stack; with this there is no Go code in it at all.
//
// A script may hold one fork step. The nursery executes the steps up to and including it, the child those after
// it; the child's last step is an execve that succeeds, or it exits with code 127.
package nursery
