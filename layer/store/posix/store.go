package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/store/staging"
	"github.com/opendsec/dsec/sandbox"
)

const (
	manifestName = "manifest.json"
	metaName     = "meta.erofs"
	dataName     = "data"
)

// Store is a folder of layers. It is safe for concurrent use, also by several processes.
type Store struct {
	layers  string
	staging *staging.Area
	log     *slog.Logger
}

var (
	_ layer.FileStore = (*Store)(nil)
	_ layer.Prober    = (*Store)(nil)
)

// Open opens the store in folder, which is made when it is missing, and removes what dead processes left
// half made.
func Open(folder string, log *slog.Logger) (*Store, error) {
	folder, err := filepath.Abs(folder) // mounts keep the paths of layers
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{layers: filepath.Join(folder, "layers"), log: log}
	if err := os.MkdirAll(s.layers, 0o700); err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	if s.staging, err = staging.Open(filepath.Join(folder, "staging"), log); err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	return s, nil
}

// dir returns where d lies. Error: sandbox.ErrInvalid.
func (s *Store) dir(d layer.Digest) (string, error) {
	if _, err := layer.ParseDigest(string(d)); err != nil {
		return "", err
	}
	return filepath.Join(s.layers, d.Hex()), nil
}

func notFound(d layer.Digest) error {
	return fmt.Errorf("layer %s: %w in this store: import it again", d, sandbox.ErrNotFound)
}

// Get reads a manifest and verifies it against its digest.
func (s *Store) Get(_ context.Context, d layer.Digest) (*layer.Manifest, error) {
	dir, err := s.dir(d)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.missing(d, dir)
	}
	if err != nil {
		return nil, unavailable(d, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, layer.MaxManifestSize))
	if err != nil {
		return nil, unavailable(d, err)
	}
	return layer.DecodeManifest(b, d)
}

// missing tells a layer that is not there from one that lost its manifest and from a store that is gone.
func (s *Store) missing(d layer.Digest, dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("layer %s: %w: %w: it has no manifest", d, sandbox.ErrUnavailable, layer.ErrDamaged)
	}
	if _, err := os.Lstat(s.layers); err != nil {
		return unavailable(d, err)
	}
	return notFound(d)
}

func unavailable(d layer.Digest, err error) error {
	return fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrUnavailable, err)
}

// OpenMeta opens the metadata image.
func (s *Store) OpenMeta(ctx context.Context, d layer.Digest) (io.ReadCloser, error) {
	return s.open(ctx, d, metaName)
}

// OpenData opens the data; a layer without any reads as empty.
func (s *Store) OpenData(ctx context.Context, d layer.Digest) (io.ReadCloser, error) {
	return s.open(ctx, d, dataName)
}

func (s *Store) open(ctx context.Context, d layer.Digest, name string) (io.ReadCloser, error) {
	m, err := s.Get(ctx, d)
	if err != nil {
		return nil, err
	}
	if name == dataName && m.Data.Size == 0 {
		return io.NopCloser(eof{}), nil
	}
	dir, err := s.dir(d)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, unavailable(d, err)
	}
	return f, nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// ReadData reads a part of the data.
func (s *Store) ReadData(ctx context.Context, d layer.Digest, p []byte, off int64) error {
	dir, err := s.dir(d)
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, dataName))
	if errors.Is(err, fs.ErrNotExist) {
		m, gerr := s.Get(ctx, d)
		if gerr != nil {
			return gerr
		}
		if m.Data.Size == 0 {
			err = io.EOF
		}
	}
	if err == nil {
		defer f.Close()
		_, err = f.ReadAt(p, off)
	}
	if errors.Is(err, io.EOF) {
		err = layer.Truncated(off, len(p))
	}
	if err != nil {
		return unavailable(d, err)
	}
	return nil
}

// Stage makes a private directory on the store's file system.
func (s *Store) Stage(ctx context.Context) (layer.Stage, error) {
	return s.staging.New(ctx)
}

// Probe asks the file system, past what the kernel remembers of it.
func (s *Store) Probe() error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.layers, &st); err != nil {
		return fmt.Errorf("layer store: %w: %w", sandbox.ErrUnavailable, &os.PathError{Op: "statfs", Path: s.layers, Err: err})
	}
	return nil
}

// List returns what is published, in no particular order.
func (s *Store) List(context.Context) ([]layer.Digest, error) {
	entries, err := os.ReadDir(s.layers)
	if err != nil {
		return nil, fmt.Errorf("list layers: %w: %w", sandbox.ErrUnavailable, err)
	}
	var out []layer.Digest
	for _, e := range entries {
		if d, err := layer.ParseDigest("b3:" + e.Name()); err == nil && e.IsDir() {
			out = append(out, d)
		}
	}
	return out, nil
}

// Delete takes a layer away at once and then removes its files; mounts of it go on.
func (s *Store) Delete(ctx context.Context, d layer.Digest) error {
	dir, err := s.dir(d)
	if err != nil {
		return err
	}
	st, err := s.Stage(ctx)
	if err != nil {
		return fmt.Errorf("delete layer %s: %w", d, err)
	}
	err = os.Rename(dir, filepath.Join(st.Dir(), "deleted"))
	if errors.Is(err, fs.ErrNotExist) {
		err = notFound(d)
	} else if err == nil {
		err = syncDir(s.layers)
	}
	if cerr := st.Close(); err == nil && cerr != nil {
		s.log.WarnContext(ctx, "deleted layer left in staging", "layer", d, "error", cerr)
	}
	return err
}

// Verify reads a whole layer and compares it with its digest.
func (s *Store) Verify(ctx context.Context, d layer.Digest) error {
	m, err := s.Get(ctx, d)
	if err != nil {
		return err
	}
	dir, err := s.dir(d)
	if err != nil {
		return err
	}
	var found [2]error
	for n, p := range []struct {
		what, name string
		blob       *layer.Blob
	}{{"metadata", metaName, &m.Meta}, {"data", dataName, &m.Data}} {
		err := verifyFile(ctx, filepath.Join(dir, p.name), p.blob)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w: %s is missing", sandbox.ErrUnavailable, layer.ErrDamaged, p.name)
		}
		if err == nil {
			continue
		}
		found[n] = fmt.Errorf("%s: %w", p.what, err)
		if !errors.Is(err, layer.ErrDamaged) {
			break
		}
	}
	if err := layer.Damages(found[0], found[1]); err != nil {
		return fmt.Errorf("layer %s: %w", d, err)
	}
	return nil
}

// verifyFile compares a file with its description; for an empty blob there is no file.
func verifyFile(ctx context.Context, path string, b *layer.Blob) error {
	if b.Size == 0 {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	defer f.Close()
	if err := checkSize(f, b.Size); err != nil {
		return err
	}
	err = b.Verify(ctx, f)
	if errors.Is(err, syscall.EIO) { // a disk that cannot read it any more has lost it
		err = fmt.Errorf("%w: %w: %w", sandbox.ErrUnavailable, layer.ErrDamaged, err)
	}
	return err
}

func checkSize(f *os.File, want int64) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if st.Size() != want || !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %w: %s has %d bytes, its manifest says %d", sandbox.ErrUnavailable, layer.ErrDamaged,
			filepath.Base(f.Name()), st.Size(), want)
	}
	return nil
}
