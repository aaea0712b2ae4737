package tree_test

import (
	"archive/tar"
	"os"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
)

func TestWhiteouts(t *testing.T) {
	lower := layertest.Tar(t, entry{Name: "a", Body: "1"}, entry{Name: "d/x", Body: "1"}, entry{Name: "d/sub/y", Body: "1"}, entry{Name: "keep", Body: "1"})
	cases := map[string]struct {
		upper []entry
		want  map[string]string
	}{
		"file": {
			[]entry{{Name: ".wh.a"}, {Name: "d/.wh.x"}},
			map[string]string{"d": "dir 755", "d/sub": "dir 755", "d/sub/y": "= 1", "keep": "= 1"},
		},
		"directory": {
			[]entry{{Name: ".wh.d"}},
			map[string]string{"a": "= 1", "keep": "= 1"},
		},
		"directory made anew, whiteout first": {
			[]entry{{Name: ".wh.d"}, {Name: "d/", Mode: 0o700}, {Name: "d/z", Body: "2"}},
			map[string]string{"a": "= 1", "keep": "= 1", "d": "dir 700", "d/z": "= 2"},
		},
		"directory made anew, whiteout last": {
			[]entry{{Name: "d/", Mode: 0o700}, {Name: "d/z", Body: "2"}, {Name: ".wh.d"}},
			map[string]string{"a": "= 1", "keep": "= 1", "d": "dir 700", "d/z": "= 2"},
		},
		"opaque first": {
			[]entry{{Name: "d/.wh..wh..opq"}, {Name: "d/sub/z", Body: "2"}},
			map[string]string{"a": "= 1", "keep": "= 1", "d": "dir 755", "d/sub": "dir 755", "d/sub/z": "= 2"},
		},
		"opaque last": {
			[]entry{{Name: "d/sub/z", Body: "2"}, {Name: "d/.wh..wh..opq"}},
			map[string]string{"a": "= 1", "keep": "= 1", "d": "dir 755", "d/sub": "dir 755", "d/sub/z": "= 2"},
		},
		"own file stays": {
			[]entry{{Name: "a", Body: "2"}, {Name: ".wh.a"}},
			map[string]string{"a": "= 2", "keep": "= 1", "d": "dir 755", "d/x": "= 1", "d/sub": "dir 755", "d/sub/y": "= 1"},
		},
		"of nothing": {
			[]entry{{Name: "none/.wh.x"}, {Name: ".wh.none"}, {Name: ".wh..wh.plnk"}},
			map[string]string{"a": "= 1", "keep": "= 1", "d": "dir 755", "d/x": "= 1", "d/sub": "dir 755", "d/sub/y": "= 1"},
		},
		"root opaque": {
			[]entry{{Name: ".wh..wh..opq"}, {Name: "new", Body: "2"}},
			map[string]string{"new": "= 2"},
		},
		"hard link to the lower layer": {
			[]entry{{Name: "h", Link: "a", Type: tar.TypeLink}, {Name: ".wh.a"}},
			map[string]string{"h": "= 1", "keep": "= 1", "d": "dir 755", "d/x": "= 1", "d/sub": "dir 755", "d/sub/y": "= 1"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := layers(t, tree.Options{}, tree.OCI, lower, layertest.Tar(t, c.upper...))
			if err != nil {
				t.Fatal(err)
			}
			c.want["."] = "dir 755"
			layertest.Compare(t, c.want, list(t, r))
		})
	}
}

// What an upper layer removes must not stay in the data that is published.
func TestRemovedDataIsGone(t *testing.T) {
	secret := strings.Repeat("the reference answer ", 5000)
	shared := strings.Repeat("shared", 1000)
	lower := layertest.Tar(t, entry{Name: "0", Body: "first"}, entry{Name: "secret", Body: secret}, entry{Name: "s1", Body: shared}, entry{Name: "big", Body: strings.Repeat("b", 3<<20)})
	upper := layertest.Tar(t, entry{Name: ".wh.secret"}, entry{Name: "s2", Body: shared}, entry{Name: ".wh.s1"}, entry{Name: "last", Body: "last"})
	r, err := layers(t, tree.Options{}, tree.OCI, lower, upper)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(r.DataPath)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "reference answer") {
		t.Error("a removed file's content is in the layer")
	}
	if r.Stats.DeadBytes < int64(len(secret)) {
		t.Errorf("DeadBytes = %d", r.Stats.DeadBytes)
	}
	layertest.Compare(t, map[string]string{".": "dir 755", "0": "= first", "s2": "= " + shared, "big": "= " + strings.Repeat("b", 3<<20), "last": "= last"}, list(t, r))
	if err := r.Manifest.Data.Verify(t.Context(), strings.NewReader(string(data))); err != nil {
		t.Error(err)
	}
}

// The upper directory of an overlay becomes a layer that hides what the upper hid.
func TestOverlayUpper(t *testing.T) {
	lower, upper, work, merged := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	for _, p := range []string{"/d/x", "/d2/y", "/f", "/keep"} {
		if err := os.MkdirAll(lower+p[:strings.LastIndex(p, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(lower+p, []byte("lower"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay := func(opts, at string) {
		t.Helper()
		run(t, "mount", "-t", "overlay", "overlay", "-o", opts, at)
		t.Cleanup(func() { run(t, "umount", at) })
	}
	overlay("lowerdir="+lower+",upperdir="+upper+",workdir="+work, merged)
	for _, cmd := range []string{"rm f", "rm -r d2", "mkdir d2", "echo new > d2/z", "rm d/x"} {
		run(t, "sh", "-c", "cd "+merged+" && "+cmd)
	}
	want := layertest.Describe(t, merged)
	r := mustBuild(t, tree.Options{Overlay: true}, func(b *tree.Builder) error { return b.AddDir(t.Context(), upper) })
	again := t.TempDir()
	overlay("lowerdir="+layertest.Mount(t, r.MetaPath, r.DataPath)+":"+lower, again)
	layertest.Compare(t, want, layertest.Describe(t, again))
}
