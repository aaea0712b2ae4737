// Package debkernel gets a kernel from Debian's packages: fetched with apt into a cache directory and unpacked there, for
// virtual machines and for tests that run on another kernel than the machine's; and its source (package backend/microvm/kernel
// builds microVMs' own kernel of it).
package debkernel
