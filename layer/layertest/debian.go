package layertest

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// DebianBase returns the tar of a Debian tree that hack/debian-base.sh left in the cache; without one the test
// is skipped. Of several it is the largest.
func DebianBase(t testing.TB) string {
	t.Helper()
	pattern := filepath.Join(cmp.Or(os.Getenv("DSEC_CACHE"), "/var/cache/dsec"), "debian-*.tar")
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("no %s: run hack/debian-base.sh", pattern)
	}
	size := func(path string) int64 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(size(a), size(b)) })
}
