// Package microvm is the backend of sandboxes that have a kernel of their own: small virtual machines under QEMU, with KVM
// where the node has it and by emulation elsewhere.
//
// A machine is one QEMU process in control groups of its own, below which it is bounded from outside. It boots Debian's
// cloud kernel (package internal/debkernel, `dsec kernel install`) and an initial file system made here: dsec-init, and
// the modules it takes (package guest/machine is its first program). The environment's layers are read-only disks, an
// EROFS image and its data each; the writable layer is a sparse file with ext4 in it.
//
// Machines are kept ready (pool): clones of a template, which was booted without an environment, that stand still and get
// the files of their layers when they are claimed. One that nobody kept ready is cloned or booted.
//
// All that belongs to a machine lies in run/vm/ID of the state directory:
//
//	record.json  who it is; written before anything else is made
//	disk.raw     the writable layer
//	qmp          QEMU's monitor (package qmp)
//	control      the machine's first program (package guest/machine/control)
//	channel      dsec-init, by way of that
//	log          what QEMU says
//
// The three are sockets that QEMU listens on: whoever comes after an edge that was killed connects again. A machine that
// ends, by a panic or because its dsec-init ended, stays as a stopped QEMU, which can be asked why; a QEMU that is gone
// has crashed or was killed.
package microvm
