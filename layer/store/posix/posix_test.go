package posix_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
)

func open(t *testing.T, dir string) *posix.Store {
	t.Helper()
	s, err := posix.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	dirs := map[*testing.T]string{}
	layertest.RunStore(t, func(t *testing.T, name string) layer.Store {
		if dirs[t] == "" {
			dirs[t] = t.TempDir()
		}
		return open(t, filepath.Join(dirs[t], name))
	})
}

// put publishes a sample by files and returns where it lies.
func put(t *testing.T, s *posix.Store, dir string, sample *layertest.Sample) string {
	t.Helper()
	from := t.TempDir()
	meta, data := filepath.Join(from, "m"), filepath.Join(from, "d")
	if err := errors.Join(os.WriteFile(meta, sample.Meta, 0o600), os.WriteFile(data, sample.Data, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutFiles(t.Context(), sample.Manifest, meta, data); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "layers", sample.Digest.Hex())
}

func overwrite(t *testing.T, path string, at int64, b string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(b), at); err != nil {
		t.Fatal(err)
	}
}

func TestNodeMountsAndVerifies(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	sample := layertest.NewSample(t, 1, 600_000)
	at := put(t, s, dir, sample)
	n := posix.NewNode(s)
	for range 2 { // the second time from memory
		l, err := n.Local(t.Context(), sample.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if l.Manifest.Data.Size != int64(len(sample.Data)) {
			t.Fatalf("data of %d bytes", l.Manifest.Data.Size)
		}
		got, err := os.ReadFile(filepath.Join(layertest.Mount(t, l.MetaPath, l.DataPath), "file-1"))
		if err != nil || string(got) != string(sample.Data[:600_000]) {
			t.Fatalf("content differs, %v", err)
		}
	}
	overwrite(t, filepath.Join(at, "data"), 300_000, "X!")
	if _, err := n.Local(t.Context(), sample.Digest); err != nil {
		t.Errorf("Local looks at sizes only: %v", err)
	}
	if err := n.Verify(t.Context(), sample.Digest); !errors.Is(err, layer.ErrDamaged) || !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("Verify of a flipped byte: %v", err)
	}
	if err := os.Truncate(filepath.Join(at, "data"), 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Local(t.Context(), sample.Digest); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("Local of a truncated blob: %v", err)
	}
	// Publishing it again repairs it.
	put(t, s, dir, sample)
	if err := n.Verify(t.Context(), sample.Digest); err != nil {
		t.Error(err)
	}
	overwrite(t, filepath.Join(at, "manifest.json"), 0, "[")
	if _, err := posix.NewNode(s).Local(t.Context(), sample.Digest); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("Local with a damaged manifest: %v", err)
	}
	put(t, s, dir, sample)
	if err := s.Delete(t.Context(), sample.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Local(t.Context(), sample.Digest); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Local of a deleted layer: %v", err)
	}
}

func TestSweepRemovesOnlyTheDead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	alive, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	dead := filepath.Join(dir, "staging", "dead")
	if err := errors.Join(os.WriteFile(dead+".lock", nil, 0o600), os.Mkdir(dead, 0o700), os.WriteFile(filepath.Join(dead, "data"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(alive.Dir()); err != nil {
		t.Errorf("the sweep took a living stage: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "staging"))
	if err != nil || len(left) != 2 {
		t.Errorf("staging holds %v, %v; want the living stage and its lock", left, err)
	}
	if err := alive.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ = os.ReadDir(filepath.Join(dir, "staging")); len(left) != 0 {
		t.Errorf("staging holds %v", left)
	}
}

func TestFilesAreReadOnlyAndPrivate(t *testing.T) {
	dir := t.TempDir()
	at := put(t, open(t, dir), dir, layertest.NewSample(t, 1, 10))
	for path, want := range map[string]os.FileMode{
		at: 0o700, filepath.Join(at, "data"): 0o400, filepath.Join(at, "meta.erofs"): 0o400, filepath.Join(at, "manifest.json"): 0o400,
	} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, st.Mode(), err, want)
		}
	}
}

// TestRepair: publishing a layer again mends it, and a node that has it mounted learns that it is another file.
func TestRepair(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("files that may not be written are damaged as root")
	}
	dir := t.TempDir()
	at := func(d layer.Digest) string { return filepath.Join(dir, "layers", d.Hex()) }
	s := open(t, dir)
	layertest.RunRepair(t, s, layertest.DamageFiles(at, "meta.erofs", "data"))
	sample := layertest.NewSample(t, 40, 5*layer.ChunkSize)
	n := posix.NewNode(s)
	was := n.Inode(sample.Digest)
	put(t, s, dir, sample)
	if now := n.Inode(sample.Digest); now != was || was == 0 {
		t.Errorf("what was not damaged was replaced: inode %d, then %d", was, now)
	}
	overwrite(t, filepath.Join(at(sample.Digest), "data"), 5, "X!")
	put(t, s, dir, sample)
	if now := n.Inode(sample.Digest); now == was || now == 0 {
		t.Errorf("inode %d, then %d", was, now)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "staging")); err != nil || len(left) != 0 {
		t.Errorf("staging holds %v, %v", left, err)
	}
}
