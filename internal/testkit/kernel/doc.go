// Package kernel runs the project's tests on another kernel: Debian's, of the version that production has, booted
// under QEMU with pure cgroup v2 and AppArmor, over a Debian tree.
//
// The parts are made once and kept in a cache directory, each named by what it was made from:
//
//	apt/                 package lists of the suite that the kernel comes from
//	linux-VERSION/       the kernel's package, unpacked
//	root-KEY.img         ext4: a Debian tree with the kernel's modules
//	layers-KEY.img       ext4: DSEC_CACHE as tests want it: the base's tar and its layer
//
// Nodes' state lies on a disk of the run's own, xfs with quotas of all kinds. What runs when nothing is asked for (Shares) is
// divided over two machines beside each other, since an emulated one uses one processor of the host.
//
// A run builds the test binaries, puts them on a disk of their own, boots with all disks' changes thrown away at the
// end, and reads results from a channel beside the console. The first program in the machine is package
// internal/testkit/kernel/init; the command is internal/testkit/kernel/run (`make test-kernel`).
//
// It needs root (to unpack trees with their owners), QEMU, mke2fs, dpkg-deb and apt; no loop devices, mounts or KVM.
package kernel
