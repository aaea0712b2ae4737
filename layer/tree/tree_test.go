package tree_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
)

// build makes a layer with what fill adds.
func build(t testing.TB, opts tree.Options, fill func(*tree.Builder) error) (*tree.Result, error) {
	t.Helper()
	b, err := tree.New(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := fill(b); err != nil {
		return nil, err
	}
	return b.Finish(t.Context(), layer.Config{})
}

func mustBuild(t testing.TB, opts tree.Options, fill func(*tree.Builder) error) *tree.Result {
	t.Helper()
	r, err := build(t, opts, fill)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fromDir(t testing.TB, dir string) *tree.Result {
	t.Helper()
	return mustBuild(t, tree.Options{}, func(b *tree.Builder) error { return b.AddDir(t.Context(), dir) })
}

func fromTar(t testing.TB, data []byte) *tree.Result {
	t.Helper()
	return mustBuild(t, tree.Options{}, func(b *tree.Builder) error {
		return b.AddTar(t.Context(), bytes.NewReader(data), tree.Plain)
	})
}

func run(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, stderr.Bytes())
	}
	return out
}

// A directory, its tar by an independent program, and that tar compressed give one and the same layer, and
// the kernel shows it as it was.
func TestRandomTreesRoundTrip(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			src := t.TempDir()
			layertest.RandomTree(t, src, seed, 150)
			want := layertest.Describe(t, src)

			one := fromDir(t, src)
			mnt := layertest.Mount(t, one.MetaPath, one.DataPath)
			layertest.Compare(t, want, layertest.Describe(t, mnt))
			layertest.Fsck(t, one.MetaPath, one.DataPath)

			archive := filepath.Join(t.TempDir(), "a.tar")
			run(t, "tar", "--format=pax", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", src, "-cf", archive, ".")
			run(t, "tar", "--compare", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", mnt, "-f", archive)
			data, err := os.ReadFile(archive)
			if err != nil {
				t.Fatal(err)
			}
			for name, tarred := range map[string][]byte{
				"plain": data,
				"gzip":  run(t, "gzip", "-1", "-c", archive),
				"zstd":  run(t, "zstd", "-q", "-1", "-c", archive),
			} {
				two := fromTar(t, tarred)
				if one.Manifest.Meta.Size != two.Manifest.Meta.Size {
					t.Errorf("%s: metadata of %d bytes from the directory, %d from the tar", name, one.Manifest.Meta.Size, two.Manifest.Meta.Size)
				}
				layertest.Compare(t, want, layertest.Describe(t, layertest.Mount(t, two.MetaPath, two.DataPath)))
				if three := fromTar(t, tarred); three.Digest != two.Digest {
					t.Errorf("%s: two imports of one tar: %s and %s", name, two.Digest, three.Digest)
				}
			}
			if again := fromDir(t, src); again.Digest != one.Digest {
				t.Errorf("two imports of one directory: %s and %s", one.Digest, again.Digest)
			}
		})
	}
}
