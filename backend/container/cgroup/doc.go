// Package cgroup is the resource controller of the container backend: one interface, two kernels.
//
// Each sandbox has a group with two children: init (its dsec-init, which the limits and the freezer never
// hit) and work, with one group below it for each command:
//
//	<root>/<sandbox>/init          dsec-init
//	<root>/<sandbox>/work          limits, freezer, accounting
//	<root>/<sandbox>/work/<cmd>    one command's whole process tree
//
// dsec-init is born in work and moves to init once it has made work the root of its control-group namespace: inside,
// a command's group is /<cmd>, and /sys/fs/cgroup shows the sandbox's limits.
//
// On a pure v2 host that is all; the groups lie below the edge's own (a service with Delegate=yes), whose processes
// move to a leaf beside them (MoveToLeaf). On a hybrid host the v2 tree carries no controllers but still freezes, kills
// and follows each tree; memory, cpu and pids (and blkio, where I/O is limited) are one v1 group for each sandbox, <root>/<sandbox>,
// which dsec-init's nursery thread joins once (v1 membership is per thread), so that all commands are
// born inside.
//
// The price of counting memory kills by command on v2: the memory part of a removed command's group lives on in the
// kernel as long as file pages that the command brought in do (measured: 19 KB a command on two processors, charged to
// the sandbox, given back when its memory is reclaimed).
//
// All groups are made and removed by the host; a sandbox can write to none of them. dsec-init gets
// descriptors opened by the host, and the kernel checks writes against the opener.
package cgroup
