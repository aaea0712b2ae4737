// Package fullvm is the backend of complete machines: q35 under QEMU, with firmware, a disk of their own, a screen, a
// keyboard and a pointer, and any operating system that is on the disk. KVM runs them where the node has it, emulation
// elsewhere.
//
// What a machine starts from is a layer with one file, disk.raw (package layer/disk). The node mounts it as any layer, so
// that it is read on demand where layers are; QEMU gets a descriptor of the file and no path. What the machine writes goes
// to a qcow2 file of its own, whose size as a disk is the sandbox's disk limit.
//
// All that belongs to a machine lies in run/fullvm/ID of the state directory:
//
//	record.json  who it is; written before anything else is made
//	disk.qcow2   what it has written
//	seed.iso     what cloud-init finds in it, where that was asked for
//	vars.fd      the variables of its firmware, where that is UEFI
//	qmp, vnc     QEMU's monitor and screen: sockets that QEMU listens on
//	control, channel  ports of an agent inside, likewise
//	log          what QEMU says
//
// An agent inside (dsec-init as a service, package guest/machine) is optional. Without one Connect answers
// sandbox.ErrUnsupported, and an instance is used by its screen (sandbox.Screen) alone; it may come later, and go and come
// again when the system restarts (sandbox.LateAgent). A disk that is said to have one is ready when it answers. A machine that ends by itself stays as a stopped QEMU, which can be asked why.
package fullvm
