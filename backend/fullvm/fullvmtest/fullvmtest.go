// Package fullvmtest makes disks for tests of full VMs.
package fullvmtest

import _ "embed"

// boot is boot.asm, assembled as it says.
//
//go:embed boot.bin
var boot []byte

// DiskSize is the size of the disk of Echo, bytes.
const DiskSize = 1 << 20

// Echo is a disk with a system that needs nothing: it shows what is typed, on the screen and on the serial port, and
// Enter stores the line on the disk, which it shows first when it starts ("ready: LINE"). Escape switches the machine off,
// Ctrl-P makes the system panic.
func Echo(line string) []byte {
	d := make([]byte, DiskSize)
	copy(d, boot)
	copy(d[512:1023], line)
	return d
}

// Empty is a disk with nothing to start.
func Empty() []byte { return make([]byte, DiskSize) }
