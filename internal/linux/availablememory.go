package linux

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// AvailableMemory is how much memory programs can still have, bytes.
func AvailableMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}
