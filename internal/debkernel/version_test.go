package debkernel

import "testing"

// TestCompareVersions: numbers are compared, not letters, and what follows them does not count.
func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"6.12.9-dsec", "6.12.10+deb13-cloud-amd64", -1}, {"6.12.117-dsec", "6.12.99-dsec", 1}, {"6.12.10-dsec", "6.12.10+deb13-cloud-amd64", 0},
		{"6.13-rc1-dsec", "6.13.1-dsec", -1}, {"7.0-dsec", "6.99.9", 1}, {"", "6", -1}, {"dsec", "", 0},
	} {
		if got := CompareVersions(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
