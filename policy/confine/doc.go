// Package confine says what the code in a sandbox may ask of the kernel: a system-call filter, as data. It
// applies nothing; the container backend hands the program to dsec-init, whose nursery thread installs it once
// and from which every command is born.
//
// The filter is one layer of several (user namespace, capabilities, masked paths, cgroups, read-only layers):
// it takes away what those allow and no task needs, and what has broken kernels before.
package confine
