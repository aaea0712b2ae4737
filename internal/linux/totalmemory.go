package linux

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// TotalMemory is the machine's memory in bytes, without what the kernel keeps for itself.
func TotalMemory() (int64, error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	return int64(si.Totalram) * int64(si.Unit), nil
}
