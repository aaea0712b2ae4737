package machine

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// outb writes to a port of the machine; see timer_amd64.s.
func outb(port uint16, value byte)

// quietTimer stops the machine's oldest timer where the kernel has a better one: nobody hears it, and it wakes QEMU 36 times
// a second, which is most of what an idle machine costs.
func quietTimer() {
	const control, counter, once = 0x43, 0x40, 0x30 // ports; counter 0, both bytes, counts down once
	b, err := os.ReadFile("/sys/devices/system/clockevents/clockevent0/current_device")
	if err != nil || strings.TrimSpace(string(b)) == "pit" {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Ioperm(counter, control-counter+1, 1) != nil {
		return // it goes on
	}
	outb(control, once)
	outb(counter, 0)
	outb(counter, 0)
	_ = unix.Ioperm(counter, control-counter+1, 0)
}
