// Package patience tells tests how slow the machine is.
package patience

import (
	"os"
	"strconv"
)

// Factor is how many times slower than usual the machine may be: DSEC_TEST_PATIENCE, which emulated ones set; at least 1.
func Factor() int {
	n, err := strconv.Atoi(os.Getenv("DSEC_TEST_PATIENCE"))
	if err != nil {
		return 1
	}
	return max(1, n)
}
