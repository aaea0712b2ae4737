package debkernel

import (
	"slices"
	"strconv"
	"strings"
)

// CompareVersions compares the numbers that kernels' versions begin with: 6.12.9-dsec is older than 6.12.10+deb13-cloud-amd64, and
// 6.12.10-dsec is as old as that.
func CompareVersions(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func numbers(version string) (out []int) {
	for part := range strings.SplitSeq(version, ".") {
		digits := strings.IndexFunc(part+" ", func(r rune) bool { return r < '0' || r > '9' })
		n, err := strconv.Atoi(part[:digits])
		if err != nil {
			return out
		}
		if out = append(out, n); digits < len(part) {
			return out
		}
	}
	return out
}
