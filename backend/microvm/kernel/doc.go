// Package kernel builds microVMs' own kernel: Debian's source of the same version as its cloud kernel, with the configuration
// that lies here (microvm.config), as an ELF file without modules. What it makes is a directory that package debkernel takes
// in the place of Debian's kernel (`make kernel`, `dsec kernel build`, `--opt kernel=own`):
//
//	boot/vmlinux-VERSION   the kernel
//	boot/config-VERSION    the whole configuration
//	source                 the package that it was built of, and the compiler
//
// The directory's name holds the version and a hash of the configuration, the source and the compiler: the same inputs are
// built once. A build that was interrupted goes on where it was. Newest is the one that a node takes: what is not whole, or was
// made of another configuration than this program's, is passed over.
package kernel
