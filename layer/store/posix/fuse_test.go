package posix_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
)

// TestStoreOnFUSE: the store on file systems that are not the kernel's own.
func TestStoreOnFUSE(t *testing.T) {
	if !testkit.HaveFUSE() {
		t.Skip("no FUSE here, or not root")
	}
	for name, mount := range map[string]func(ctx context.Context, from, at string) (func() error, error){
		"loopback": testkit.MountLoopback,
		"bindfs":   testkit.MountBindFS,
	} {
		t.Run(name, func(t *testing.T) {
			from, at := t.TempDir(), t.TempDir()
			stop, err := mount(t.Context(), from, at)
			if errors.Is(err, testkit.ErrNotInstalled) {
				t.Skip(err)
			}
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
		})
	}
}
