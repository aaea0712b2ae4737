package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// ticks of the kernel's clock in a second, as /proc shows times; the same on every machine that runs DSec.
const ticks = 100

// identify tells the number and the start of a process that is known by its pidfd; pid 0 = it has ended, or lives in
// another pid namespace. Where the start cannot be read it is now.
func identify(p *os.File) (pid int, since time.Time) {
	now := time.Now()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", p.Fd()))
	if err != nil {
		return 0, now
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, _ = strconv.Atoi(strings.TrimSpace(rest))
		}
	}
	if pid <= 0 { // -1: it has ended
		return 0, now
	}
	started, err := linux.StartTime(pid)
	if err != nil {
		return pid, now
	}
	b, err = os.ReadFile("/proc/uptime")
	if err != nil {
		return pid, now
	}
	up, _, _ := strings.Cut(string(b), " ")
	seconds, err := strconv.ParseFloat(up, 64)
	if err != nil {
		return pid, now
	}
	age := time.Duration((seconds - float64(started)/ticks) * float64(time.Second))
	return pid, now.Add(-max(0, age))
}
