package tree_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/layer/union"
	"github.com/opendsec/dsec/sandbox"
)

// A layer that is made for a stack leaves the directories of the stack what they are, and follows its links.
func TestBelow(t *testing.T) {
	base := mustBuild(t, tree.Options{}, func(b *tree.Builder) error {
		return b.AddTar(t.Context(), bytes.NewReader(layertest.Tar(t, layertest.Entry{Name: "usr/bin/", Mode: 0o711, UID: 5}, layertest.Entry{Name: "bin", Link: "usr/bin"},
			layertest.Entry{Name: "home/u/", Mode: 0o700, UID: 1000}, layertest.Entry{Name: "file", Body: "x"}, layertest.Entry{Name: "abs", Link: "/home/u"})), tree.Plain)
	})
	image, err := os.ReadFile(base.MetaPath)
	if err != nil {
		t.Fatal(err)
	}
	root, err := erofs.Read(image, base.Manifest.Data.Size)
	if err != nil {
		t.Fatal(err)
	}
	below, err := union.Show(t.Context(), []*erofs.Inode{root})
	if err != nil {
		t.Fatal(err)
	}
	add := func(prefix string, entries ...layertest.Entry) (*tree.Result, error) {
		return build(t, tree.Options{Below: below, Prefix: prefix}, func(b *tree.Builder) error {
			return b.AddTar(t.Context(), bytes.NewReader(layertest.Tar(t, entries...)), tree.Plain)
		})
	}
	r, err := add("/bin", layertest.Entry{Name: "tool", Body: "t"})
	if err != nil {
		t.Fatal(err)
	}
	got := layertest.Describe(t, layertest.Mount(t, r.MetaPath, r.DataPath))
	if _, ok := got["bin"]; ok || !strings.HasPrefix(got["usr/bin"], "040711 5:5 ") || got["usr/bin/tool"] == "" {
		t.Errorf("%v", got)
	}
	if r, err = add("", layertest.Entry{Name: "abs/new/x", Body: "t"}); err != nil {
		t.Fatal(err)
	}
	got = layertest.Describe(t, layertest.Mount(t, r.MetaPath, r.DataPath))
	if !strings.HasPrefix(got["home/u"], "040700 1000:1000 ") || !strings.HasPrefix(got["home/u/new"], "040755 0:0 ") || got["home/u/new/x"] == "" || got["abs"] != "" {
		t.Errorf("%v", got)
	}
	if _, err = add("", layertest.Entry{Name: "file/x"}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("below a file: %v", err)
	}
	if n := below.Lookup("/abs/../../bin/.."); n == nil || n != below.Root.Children["usr"] {
		t.Errorf("Lookup: %v", n)
	}
}
