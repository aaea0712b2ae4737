// Package qemu is what backends that run QEMU share: sockets in a machine's directory, and the two ports by which a node
// talks to the program inside (package guest/machine): Control for requests, Channel for dsec-init's own language; Save and Load,
// through which a machine's state goes; the files of snapshots, and the notes beside them (Made); machines' records (Process), and what QEMU says (Words).
//
// Both ends of a port outlive connections; package guest/machine/control says how each connection finds its beginning. What
// comes from a machine is hostile: lines, what is read before a beginning, and waiting are bounded.
package qemu
