// Package machine is the first program of a virtual machine: dsec-init, started by the kernel as `/init machine`.
//
// It loads modules, mounts what a system needs, starts dsec-init as it is in a container (package guest/initd) in
// namespaces and control groups of its own, and carries bytes between the machine's ports and dsec-init's socket. What
// the host's side does for a container it does here: compose the root of layers and the writable disk (package control
// has the language), make a control group for each command, and freeze them.
//
// Everything in a machine is of one sandbox; what protects the node from it is the machine. When dsec-init ends, the
// machine restarts, which for its node means that it ends.
//
// In a full virtual machine the same is a service of the system on its disk, `dsec-init agent`: dsec-init then works in the
// system as it is, and there is nothing to compose.
package machine
