package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Machine is how the machine's processors have spent their time since it started, seconds, all of them together.
type Machine struct {
	Busy float64 // whoever used them
	Idle float64 // nobody had anything to do
	Wait float64 // idle while something waited for a disk
}

// Ticks of a second, as /proc counts them.
const Ticks = 100

// MachineNow reads it (/proc/stat).
func MachineNow() (m Machine, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var v []float64
	for i, f := range strings.Fields(line) {
		if i == 0 { // "cpu"
			continue
		}
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return m, fmt.Errorf("/proc/stat: %w", err)
		}
		v = append(v, n/Ticks)
	}
	if len(v) < 7 {
		return m, fmt.Errorf("/proc/stat: %q", line)
	}
	return Machine{Busy: v[0] + v[1] + v[2] + v[5] + v[6], Idle: v[3], Wait: v[4]}, nil
}
