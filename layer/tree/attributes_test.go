package tree_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// upperOnly makes a layer of a directory as if an overlay had written it.
func upperOnly(t *testing.T, limits tree.Limits, u tree.Upper) (*tree.Result, error) {
	t.Helper()
	b, err := tree.New(t.TempDir(), tree.Options{Overlay: true, Devices: tree.SkipDevices, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := b.AddUpper(t.Context(), u); err != nil {
		return nil, err
	}
	return b.Finish(t.Context(), layer.Config{})
}

// Whoever owns a file may have btrfs compress it (chattr +c), which is an attribute of btrfs's own: it must not keep a
// sandbox's changes from being packed.
func TestBtrfsAttributesStayOut(t *testing.T) {
	u := newUppers(t)
	up := filepath.Join(u.dir, u.begin(), "upper")
	if err := os.Mkdir(filepath.Join(up, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(up, "d/f"), []byte("f"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"d", "d/f"} {
		if err := linux.SetLxattr(filepath.Join(up, p), "btrfs.compression", "zstd"); err != nil {
			t.Fatal(err)
		}
		if err := linux.SetLxattr(filepath.Join(up, p), "user.kept", "y"); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string][]erofs.Xattr{}
	r, err := upperOnly(t, tree.Limits{}, tree.Upper{Path: up, See: func(p string, i *erofs.Inode) { seen[p] = i.Xattrs }})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/d", "/d/f"} {
		if x := seen[p]; len(x) != 1 || x[0].Name != "user.kept" {
			t.Errorf("%s has %v", p, x)
		}
	}
	mountResult(t, r)
}

// What no image can hold is named, so that it can be left out.
func TestTooManyAttributesNameTheFile(t *testing.T) {
	u := newUppers(t)
	for name, set := range map[string]func(path string) error{
		"values": func(path string) (err error) {
			for n := 0; n < 40 && err == nil; n++ {
				err = linux.SetLxattr(path, fmt.Sprint("user.", n), strings.Repeat("x", 12_000))
			}
			return err
		},
		"names": func(path string) (err error) {
			for n := 0; n < 300 && err == nil; n++ {
				err = linux.SetLxattr(path, fmt.Sprintf("user.%0240d", n), "")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			up := filepath.Join(u.dir, u.begin(), "upper")
			path := filepath.Join(up, "heavy")
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := set(path); err != nil {
				t.Fatal(err)
			}
			_, err := upperOnly(t, tree.Limits{}, tree.Upper{Path: up})
			if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), `"/heavy"`) {
				t.Errorf("got %v", err)
			}
			without := func(p string) bool { return p != "/heavy" }
			if _, err := upperOnly(t, tree.Limits{}, tree.Upper{Path: up, Want: without}); err != nil {
				t.Errorf("without it: %v", err)
			}
		})
	}
}

// A directory of more names than a layer may have is given up while its names are read, also where none of them is wanted.
func TestCrowdedDirectory(t *testing.T) {
	up := t.TempDir()
	if err := os.Mkdir(filepath.Join(up, "crowd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		if err := os.WriteFile(filepath.Join(up, "crowd", fmt.Sprint(n)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, limits := range map[string]tree.Limits{"entries": {Entries: 100}, "bytes": {MetaBytes: 100}} {
		t.Run(name, func(t *testing.T) {
			none := func(string) bool { return false }
			_, err := upperOnly(t, limits, tree.Upper{Path: up, Want: none})
			if !errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), `"/crowd"`) {
				t.Errorf("got %v", err)
			}
			prune := func(p string) bool { return p == "/crowd" }
			if _, err := upperOnly(t, limits, tree.Upper{Path: up, Want: none, Prune: prune}); err != nil {
				t.Errorf("without it: %v", err)
			}
			b, err := tree.New(t.TempDir(), tree.Options{Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := b.AddDir(t.Context(), up); !errors.Is(err, sandbox.ErrExhausted) {
				t.Errorf("directory: %v", err)
			}
		})
	}
}
