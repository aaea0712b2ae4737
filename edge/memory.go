package edge

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

func availableMemory() (int64, error) { return meminfo("MemAvailable:") }
func totalMemory() (int64, error)     { return meminfo("MemTotal:") }

// meminfo reads one field of /proc/meminfo, in bytes.
func meminfo(field string) (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read memory of the node: %w", err)
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(field)); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read memory of the node: no %s in /proc/meminfo", field)
}
