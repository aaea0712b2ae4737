package linux

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is the time since this machine booted, suspended time included; nobody can set it.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("clock_gettime CLOCK_BOOTTIME: %v", err)) // in every kernel since 2.6.39
	}
	return time.Duration(ts.Nano())
}
