package tree_test

import (
	"archive/tar"
	"bytes"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
)

// Whatever an archive holds, reading it ends in an error or in a tree that can be written.
func FuzzTar(f *testing.F) {
	f.Add(layertest.Tar(f, layertest.Entry{Name: "a", Link: "/etc"}, layertest.Entry{Name: "a/b", Body: "x"}, layertest.Entry{Name: "h", Link: "a/b", Type: tar.TypeLink}), true)
	f.Add(layertest.Tar(f, layertest.Entry{Name: "d/x", Body: "1"}, layertest.Entry{Name: ".wh.d"}, layertest.Entry{Name: "d/.wh..wh..opq"}), true)
	f.Add(layertest.Tar(f, layertest.Entry{Name: "n", Type: tar.TypeChar}, layertest.Entry{Name: "d/", Xattrs: map[string]string{"user.a": "b"}}), false)
	f.Add([]byte{0x1f, 0x8b, 8, 0}, false)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 4}, false)
	f.Fuzz(func(t *testing.T, data []byte, oci bool) {
		form := tree.Plain
		if oci {
			form = tree.OCI
		}
		b, err := tree.New(t.TempDir(), tree.Options{Devices: tree.KeepDevices, Limits: tree.Limits{Entries: 1000, Bytes: 1 << 20, MetaBytes: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for range 2 {
			b.NextLayer()
			if b.AddTar(t.Context(), bytes.NewReader(data), form) != nil {
				return
			}
		}
		if _, err := b.Finish(t.Context(), layer.Config{}); err != nil {
			t.Fatal(err)
		}
	})
}
