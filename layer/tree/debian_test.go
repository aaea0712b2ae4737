package tree_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
)

// A real distribution, where hack/debian-base.sh has made one.
func TestDebianBase(t *testing.T) {
	archive := layertest.DebianBase(t)
	st, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r := mustBuild(t, tree.Options{Devices: tree.SkipDevices}, func(b *tree.Builder) error {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		defer f.Close()
		return b.AddTar(t.Context(), f, tree.Plain)
	})
	took := time.Since(start)
	t.Logf("%s: %d MB in %v = %.0f MB/s; metadata %d KB, data %d MB, %d names, %d KB shared, %+v", filepath.Base(archive),
		st.Size()/1e6, took.Round(time.Millisecond), float64(st.Size())/1e6/took.Seconds(),
		r.Manifest.Meta.Size/1e3, r.Manifest.Data.Size/1e6, r.Manifest.Files, r.Stats.SharedBytes/1e3, r.Stats)
	layertest.Fsck(t, r.MetaPath, r.DataPath)
	mnt := layertest.Mount(t, r.MetaPath, r.DataPath)
	run(t, "tar", "--compare", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--exclude=./dev/*", "-C", mnt, "-f", archive)
}
