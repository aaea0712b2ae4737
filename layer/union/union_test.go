package union_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/layer/union"
)

// made is a finished layer and its metadata.
type made struct {
	*tree.Result
	root *erofs.Inode
	data io.ReaderAt
	mnt  string
}

func finish(t *testing.T, opts tree.Options, fill func(*tree.Builder) error) *made {
	t.Helper()
	b, err := tree.New(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := fill(b); err != nil {
		t.Fatal(err)
	}
	r, err := b.Finish(t.Context(), layer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := &made{Result: r}
	image, err := os.ReadFile(r.MetaPath)
	if err != nil {
		t.Fatal(err)
	}
	if m.root, err = erofs.Read(image, r.Manifest.Data.Size); err != nil {
		t.Fatal(err)
	}
	if r.DataPath != "" {
		f, err := os.Open(r.DataPath)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		m.data = f
	}
	if os.Geteuid() == 0 {
		m.mnt = layertest.Mount(t, r.MetaPath, r.DataPath)
	}
	return m
}

// tarLayer makes a layer of entries, whiteouts in OCI's spelling becoming those of an overlay.
func tarLayer(t *testing.T, entries ...layertest.Entry) *made {
	t.Helper()
	return finish(t, tree.Options{}, func(b *tree.Builder) error {
		return b.AddTar(t.Context(), bytes.NewReader(layertest.Tar(t, entries...)), tree.Plain)
	})
}

func collapse(t *testing.T, layers ...*made) *made {
	t.Helper()
	return finish(t, tree.Options{}, func(b *tree.Builder) error {
		var in []tree.Source
		for _, l := range layers {
			in = append(in, tree.Source{Root: l.root, Data: l.data})
		}
		return b.AddLayers(t.Context(), in)
	})
}

func run(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// mount shows layers, bottom to top, by the kernel's overlay; upper = "" makes it read-only.
func mount(t *testing.T, upper, work string, layers ...*made) string {
	t.Helper()
	at := t.TempDir()
	var dirs []string
	for _, l := range slices.Backward(layers) {
		dirs = append(dirs, l.mnt)
	}
	if len(dirs) == 1 && upper == "" {
		dirs = append(dirs, t.TempDir()) // an overlay wants two
	}
	opts := "lowerdir=" + strings.Join(dirs, ":") + ",redirect_dir=off,metacopy=off,index=off,xino=off"
	if upper != "" {
		opts += ",upperdir=" + upper + ",workdir=" + work
	}
	run(t, "/", "mount -t overlay overlay -o "+opts+" "+at)
	t.Cleanup(func() { run(t, "/", "umount "+at) })
	return at
}

// counts are what an overlay cannot tell: links over layers, and inode numbers.
var counts = regexp.MustCompile(`nlink=\d+|same="[^"]*"`)

func describe(t *testing.T, dir string) map[string]string {
	out := layertest.Describe(t, dir)
	for path, line := range out {
		out[path] = counts.ReplaceAllString(line, "")
	}
	return out
}

// change does something to a tree that is mounted.
func change(t *testing.T, rng *rand.Rand, dir string, n int) {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); rel != "." && err == nil {
			names = append(names, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pick := func() string { return "'" + strings.ReplaceAll(names[rng.IntN(len(names))], "'", `'\''`) + "'" }
	for k := range n {
		at := pick()
		script := []string{
			"rm -rf -- " + at,
			"rm -rf -- " + at + " && mkdir -p -- " + at + " && echo fresh > " + at + "/fresh",
			"rm -rf -- " + at + " && mkdir -p -- $(dirname -- " + at + ") && echo instead > " + at,
			"[ -d " + at + " ] && echo more > " + at + "/more" + fmt.Sprint(k) + " || true",
			"[ -f " + at + " ] && echo changed >> " + at + " || true",
			"[ -e " + at + " ] && chmod 0705 -- " + at + " && chown 7:8 -- " + at + " || true",
			"[ -d $(dirname -- " + at + ") ] && ln -sfn target " + at + ".link || true",
		}[rng.IntN(7)]
		cmd := exec.Command("sh", "-c", script)
		if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(string(out), "directory") && !strings.Contains(string(out), "too long") {
			t.Logf("%s: %v %s", script, err, out) // names that are in each other's way
		}
	}
}

// What the kernel shows of a stack is what it shows when any layers in a row are collapsed into one, and what Show says.
func TestCollapseShowsTheSameTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	seeds := uint64(2)
	if os.Getenv("DSEC_TEST_SLOW") != "" {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			src := t.TempDir()
			layertest.RandomTree(t, src, seed, 80)
			layers := []*made{finish(t, tree.Options{Devices: tree.SkipDevices}, func(b *tree.Builder) error { return b.AddDir(t.Context(), src) })}
			for range 4 {
				both := t.TempDir()
				upper, work := filepath.Join(both, "u"), filepath.Join(both, "w")
				run(t, both, "mkdir u w")
				change(t, rng, mount(t, upper, work, layers...), 12)
				layers = append(layers, finish(t, tree.Options{Devices: tree.SkipDevices, Overlay: true}, func(b *tree.Builder) error { return b.AddDir(t.Context(), upper) }))
			}
			want := describe(t, mount(t, "", "", layers...))
			for from := 0; from < len(layers); from++ {
				for to := from + 2; to <= len(layers); to++ {
					one := collapse(t, layers[from:to]...)
					stack := slices.Concat(layers[:from], []*made{one}, layers[to:])
					layertest.Compare(t, want, describe(t, mount(t, "", "", stack...)))
					layertest.Fsck(t, one.MetaPath, one.DataPath)
					if again := collapse(t, layers[from:to]...); again.Digest != one.Digest {
						t.Errorf("layers %d to %d: collapsed to %s and to %s", from, to, one.Digest, again.Digest)
					}
				}
			}
			shown := show(t, layers...)
			got := paths(shown)
			if expect := slices.Sorted(maps.Keys(want)); !slices.Equal(got, expect) {
				t.Errorf("Show says\n%q\nthe kernel\n%q", got, expect)
			}
			all := collapse(t, layers...)
			for c, err := range union.Diff(t.Context(), shown, show(t, all), content(t, layers, []*made{all})) {
				t.Errorf("Diff of the same tree: %+v, %v", c, err)
			}
		})
	}
}

func show(t *testing.T, layers ...*made) *union.Tree {
	t.Helper()
	var roots []*erofs.Inode
	for _, l := range layers {
		roots = append(roots, l.root)
	}
	s, err := union.Show(t.Context(), roots)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func paths(t *union.Tree) []string {
	var out []string
	var walk func(at string, n *union.Node)
	walk = func(at string, n *union.Node) {
		out = append(out, at)
		for name, c := range n.Children {
			walk(filepath.Join(at, name), c)
		}
	}
	walk(".", t.Root)
	slices.Sort(out)
	return out
}

func content(t *testing.T, old, new []*made) union.Same {
	return func(_ context.Context, a, b *union.Node) (bool, error) {
		x, err := io.ReadAll(tree.NewFileReader(a.Inode, old[a.Layer].data))
		if err != nil {
			return false, err
		}
		y, err := io.ReadAll(tree.NewFileReader(b.Inode, new[b.Layer].data))
		return bytes.Equal(x, y), err
	}
}

// Whiteouts of collapsed layers go on hiding what lies below all of them; names of one file stay one file.
func TestCollapseKeepsMarksAndLinks(t *testing.T) {
	overlay := func(script string) *made {
		dir := t.TempDir()
		run(t, dir, script)
		return finish(t, tree.Options{Overlay: true}, func(b *tree.Builder) error { return b.AddDir(t.Context(), dir) })
	}
	if os.Geteuid() != 0 {
		t.Skip("whiteouts need root")
	}
	below := overlay("mkdir -p d/e old && echo 1 > d/e/f && echo 2 > old/x && echo 3 > gone")
	one := overlay("mknod gone c 0 0 && mknod d c 0 0 && echo a > a && ln a b")
	two := overlay("mkdir d old && echo n > d/new && python3 -c 'import os; os.setxattr(\"old\", \"trusted.overlay.opaque\", b\"y\")' && echo y > old/y")
	all := collapse(t, one, two)
	at := mount(t, "", "", below, all)
	got := strings.Join(slices.Sorted(maps.Keys(layertest.Describe(t, at))), " ")
	if want := ". a b d d/new old old/y"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if line := layertest.Describe(t, all.mnt)["b"]; !strings.Contains(line, `nlink=2`) || !strings.Contains(line, `same="a"`) {
		t.Errorf("b is %s", line)
	}
	s := show(t, below, one, two)
	var hidden []string
	for _, h := range s.Hidden {
		hidden = append(hidden, fmt.Sprintf("%d %s %d of %d: %s", h.By, h.How, h.Names, h.Of, h.Path))
	}
	want := []string{"1 removed 3 of 0: /d", "1 removed 1 of 0: /gone", "2 emptied 1 of 0: /old"}
	if !slices.Equal(hidden, want) {
		t.Errorf("hidden: %q, want %q", hidden, want)
	}
}

func TestDiff(t *testing.T) {
	old := tarLayer(t, layertest.Entry{Name: "same", Body: "same"}, layertest.Entry{Name: "mode", Body: "m"}, layertest.Entry{Name: "gone/x", Body: "x"},
		layertest.Entry{Name: "size", Body: "1"}, layertest.Entry{Name: "kind", Body: "1"}, layertest.Entry{Name: "quiet", Body: "1"},
		layertest.Entry{Name: "link", Link: "a"})
	new := tarLayer(t, layertest.Entry{Name: "same", Body: "same"}, layertest.Entry{Name: "mode", Body: "m", Mode: 0o755, UID: 5}, layertest.Entry{Name: "new", Body: "x"},
		layertest.Entry{Name: "size", Body: "12"}, layertest.Entry{Name: "kind/"}, layertest.Entry{Name: "quiet", Body: "2"},
		layertest.Entry{Name: "link", Link: "b", Xattrs: map[string]string{"trusted.z": "z"}})
	diff := func(same union.Same) []string {
		var out []string
		for c, err := range union.Diff(t.Context(), show(t, old), show(t, new), same) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, strings.TrimSpace(c.Kind+" "+c.Path+" "+strings.Join(c.What, ",")))
		}
		return out
	}
	want := []string{"removed /gone", "removed /gone/x", "changed /kind type,mode", "changed /link attributes,target", "changed /mode mode,owner", "added /new", "changed /size size"}
	if got := diff(nil); !slices.Equal(got, want) {
		t.Errorf("by metadata: %q", got)
	}
	want = slices.Insert(want, 6, "changed /quiet content")
	if got := diff(content(t, []*made{old}, []*made{new})); !slices.Equal(got, want) {
		t.Errorf("by content: %q", got)
	}
}
