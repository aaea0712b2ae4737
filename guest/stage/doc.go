// Package stage prepares the mounts of a warm shell and later enters the sandbox's root.
//
// Prepare builds, on a tmpfs, all that a root file system needs from the kernel and an image does not bring:
// /proc and /sys with their dangerous parts masked, a small /dev, a terminal file system, and makes that its root.
// Enter attaches the detached mount that it is handed, moves the prepared mounts beneath it, pivots there and drops
// everything else. Nothing but dsec-init runs before. Only moves are possible then: the kernel
// refuses a fresh proc or sysfs to a user namespace that cannot see one already.
package stage
