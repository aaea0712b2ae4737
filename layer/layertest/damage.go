package layertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer"
)

// DamageFiles damages layers whose files lie in the directory that at returns.
func DamageFiles(at func(layer.Digest) string, metadata, data string) Damage {
	path := func(d layer.Digest, file string) string { return filepath.Join(at(d), file) }
	return Damage{
		Flip: func(t *testing.T, d layer.Digest, file string, off int64) {
			f, err := os.OpenFile(path(d, file), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var b [1]byte
			if _, err := f.ReadAt(b[:], off); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x55
			if _, err := f.WriteAt(b[:], off); err != nil {
				t.Fatal(err)
			}
		},
		Cut: func(t *testing.T, d layer.Digest, file string, size int64) {
			if err := os.Truncate(path(d, file), size); err != nil {
				t.Fatal(err)
			}
		},
		Remove: func(t *testing.T, d layer.Digest, file string) {
			if err := os.Remove(path(d, file)); err != nil {
				t.Fatal(err)
			}
		},
		Metadata: metadata, Data: data,
	}
}
