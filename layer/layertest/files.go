package layertest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// runFiles checks publication from files.
func runFiles(t *testing.T, st layer.FileStore, same func(*testing.T, layer.Store, *Sample)) {
	ctx := t.Context()
	write := func(dir string, s *Sample) (meta, data string) {
		t.Helper()
		meta, data = filepath.Join(dir, "m"), filepath.Join(dir, "d")
		if err := errors.Join(os.WriteFile(meta, s.Meta, 0o600), os.WriteFile(data, s.Data, 0o600)); err != nil {
			t.Fatal(err)
		}
		return meta, data
	}
	stage, err := st.Stage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSample(t, 20, 9000)
	meta, data := write(stage.Dir(), s)
	if d, err := st.PutFiles(ctx, s.Manifest, meta, data); err != nil || d != s.Digest {
		t.Fatalf("PutFiles = %s, %v", d, err)
	}
	if _, err := os.Lstat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was not consumed: %v", err)
	}
	same(t, st, s)

	s = NewSample(t, 21, 9000)
	s.Data[1]++
	meta, data = write(stage.Dir(), s)
	if _, err := st.PutFiles(ctx, s.Manifest, meta, data); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("PutFiles of other content: %v", err)
	}
	if err := stage.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(stage.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("staging is left: %v", err)
	}

	if err := st.Verify(ctx, NewSample(t, 20, 9000).Digest); err != nil {
		t.Error(err)
	}
}

// Damage changes a stored layer behind a store's back.
type Damage struct {
	// Flip changes the byte at off of a file; Cut shortens it; Remove takes it away.
	Flip   func(t *testing.T, d layer.Digest, file string, off int64)
	Cut    func(t *testing.T, d layer.Digest, file string, size int64)
	Remove func(t *testing.T, d layer.Digest, file string)
	// Metadata and Data are the names of the two files.
	Metadata, Data string
}

// RunRepair checks that Verify finds and names what is damaged, and that publishing the same layer again mends it.
func RunRepair(t *testing.T, st layer.FileStore, how Damage) {
	s := NewSample(t, 40, 5*layer.ChunkSize)
	publish := func() {
		t.Helper()
		stage, err := st.Stage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer stage.Close()
		meta, data := filepath.Join(stage.Dir(), "m"), filepath.Join(stage.Dir(), "d")
		if err := errors.Join(os.WriteFile(meta, s.Meta, 0o600), os.WriteFile(data, s.Data, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := st.PutFiles(t.Context(), s.Manifest, meta, data); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	for _, c := range []struct {
		what, says string
		damage     func(t *testing.T)
	}{
		{"data", "chunks 1-2, 4 of", func(t *testing.T) {
			for _, n := range []int64{1, 2, 4} {
				how.Flip(t, s.Digest, how.Data, n*layer.ChunkSize+77)
			}
		}},
		{"data cut", "data", func(t *testing.T) { how.Cut(t, s.Digest, how.Data, 3*layer.ChunkSize) }},
		{"data gone", "missing", func(t *testing.T) { how.Remove(t, s.Digest, how.Data) }},
		{"metadata", "metadata", func(t *testing.T) { how.Flip(t, s.Digest, how.Metadata, 40) }},
		{"metadata gone", "missing", func(t *testing.T) { how.Remove(t, s.Digest, how.Metadata) }},
		{"both", "; ", func(t *testing.T) {
			how.Flip(t, s.Digest, how.Metadata, 40)
			how.Flip(t, s.Digest, how.Data, 1)
		}},
		{"manifest", "manifest", func(t *testing.T) { how.Flip(t, s.Digest, "manifest.json", 3) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			c.damage(t)
			err := st.Verify(t.Context(), s.Digest)
			if !errors.Is(err, layer.ErrDamaged) || !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Verify says %v; want %q", err, c.says)
			}
			publish()
			if err := st.Verify(t.Context(), s.Digest); err != nil {
				t.Errorf("published again: %v", err)
			}
		})
	}
}
