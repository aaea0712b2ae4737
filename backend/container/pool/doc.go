// Package pool keeps the writable layers: one btrfs of the node, a subvolume for each sandbox, with a quota.
//
// The btrfs lies in a file (its blocks reserved, so that a full disk of the node can never make it fail) behind a
// loop device, or on a device that the operator gives. It is mounted nowhere: the mount is a descriptor of this
// process, kept alive by `dsec hold`, so that a crash leaves no mount and no device behind. On disk all ids are
// those of the sandbox (0 is its root); each sandbox sees its subvolume through a mount with its own id
// mapping.
//
// A subvolume holds upper (what the sandbox wrote) and work (the kernel's own).
package pool
