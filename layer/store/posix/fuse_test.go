package posix_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
)

// TestStoreOnFUSE: the store on a file system that is not the kernel's own.
func TestStoreOnFUSE(t *testing.T) {
	if !testkit.HaveFUSE() {
		t.Skip("no FUSE here, or not root")
	}
	from, at := t.TempDir(), t.TempDir()
	stop, err := testkit.MountLoopback(t.Context(), from, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	dirs := map[*testing.T]string{}
	layertest.RunStore(t, func(t *testing.T, name string) layer.Store {
		if dirs[t] == "" {
			if dirs[t], err = os.MkdirTemp(at, "s-"); err != nil {
				t.Fatal(err)
			}
		}
		return open(t, filepath.Join(dirs[t], name))
	})
}
