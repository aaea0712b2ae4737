package layertest

import (
	"errors"
	"os"
	"path/filepath"
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

	if v, ok := st.(layer.Verifier); ok {
		if err := v.Verify(ctx, NewSample(t, 20, 9000).Digest); err != nil {
			t.Error(err)
		}
	}
}
