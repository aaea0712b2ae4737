package qemu

import (
	"os"
	"strings"
)

// Processor tells processors apart that a restored machine could not move between.
func Processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	var out []string
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		switch k = strings.TrimSpace(k); k {
		case "vendor_id", "cpu family", "model", "stepping", "flags":
			out = append(out, k+strings.TrimSpace(v))
		case "": // of the first one
			return strings.Join(out, " ")
		}
	}
	return strings.Join(out, " ")
}
