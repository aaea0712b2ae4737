// Package linux holds the kernel interfaces that DSec needs on the host and that the standard library lacks:
// the new mount API, idmapped mounts, btrfs subvolumes and quotas, loop devices, pidfds, descriptor passing.
// Besides guest it is the only importer of x/sys/unix, so that what depends on the kernel stays in one room.
package linux
