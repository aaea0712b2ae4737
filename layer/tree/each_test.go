package tree_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/tree"
)

// What several layers have at one place is there once, as the last of them has it.
func TestEachTellsWhatIsThere(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	for _, f := range []string{one + "/state", one + "/a/x", two + "/state", two + "/a/y"} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	var bytes int64
	mustBuild(t, tree.Options{Overlay: true}, func(b *tree.Builder) error {
		for _, d := range []string{one, two} {
			if err := b.AddUpper(t.Context(), tree.Upper{Path: d}); err != nil {
				return err
			}
			b.NextLayer()
		}
		b.Each(func(path string, i *erofs.Inode) { got, bytes = append(got, path), bytes+i.Size })
		return nil
	})
	if want := []string{"/", "/a", "/a/x", "/a/y", "/state"}; !slices.Equal(got, want) || bytes != int64(len(one)+2*len(two)+len("/a/x/a/y/state")) {
		t.Errorf("%v, %d bytes; want %v", got, bytes, want)
	}
}

// A file that is refused is named as the tree has it, not as this machine does; and quoted, for its maker chose the name.
func TestRefusedFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(dir + "/d/big\n\x1b[31m\xff")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	for name, add := range map[string]func(b *tree.Builder) error{
		"dir":   func(b *tree.Builder) error { return b.AddDir(t.Context(), dir) },
		"upper": func(b *tree.Builder) error { return b.AddUpper(t.Context(), tree.Upper{Path: dir}) },
	} {
		_, err := build(t, tree.Options{Overlay: true}, add)
		if err == nil || !strings.HasPrefix(err.Error(), `"/d/big\n\x1b[31m\xff": `) || !strings.Contains(err.Error(), "leave it out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
