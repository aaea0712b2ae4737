package spelling

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	long := strings.Repeat("a", most+1)
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "pypi", 4}, {"pypi", "", 4}, {"pypi", "pypi", 0}, {"pipy", "pypi", 2}, {"npn", "npm", 1},
		{"goland", "golang", 1}, {"kitten", "sitting", 3}, {long, "a", most + 1}, {"a", long, most + 1},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%.10q, %.10q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
