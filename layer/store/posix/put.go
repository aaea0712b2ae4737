package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/store/staging"
	"github.com/opendsec/dsec/sandbox"
)

// Put publishes a layer from streams. Their content is compared with the manifest. Errors:
// sandbox.ErrInvalid, sandbox.ErrExhausted when the disk is full.
func (s *Store) Put(ctx context.Context, m *layer.Manifest, meta, data io.Reader) (layer.Digest, error) {
	st, err := s.staging.New(ctx)
	if err != nil {
		return "", err
	}
	defer st.Close()
	paths := [2]string{filepath.Join(st.Dir(), metaName+".in"), ""}
	if err := copyFile(ctx, paths[0], meta, m.Meta.Size); err != nil {
		return "", fmt.Errorf("publish layer: metadata: %w", err)
	}
	if m.Data.Size > 0 {
		paths[1] = filepath.Join(st.Dir(), dataName+".in")
		if err := copyFile(ctx, paths[1], data, m.Data.Size); err != nil {
			return "", fmt.Errorf("publish layer: data: %w", err)
		}
	}
	return s.publish(ctx, st, m, paths[0], paths[1])
}

// PutFiles publishes a layer from files, which it moves if they lie in this store's staging.
func (s *Store) PutFiles(ctx context.Context, m *layer.Manifest, metaPath, dataPath string) (layer.Digest, error) {
	st, err := s.staging.New(ctx)
	if err != nil {
		return "", err
	}
	defer st.Close()
	return s.publish(ctx, st, m, metaPath, dataPath)
}

// publish brings the files into one directory, syncs it, and gives it its name.
func (s *Store) publish(ctx context.Context, st *staging.Stage, m *layer.Manifest, metaPath, dataPath string) (layer.Digest, error) {
	encoded, d, err := m.Encode()
	if err != nil {
		return "", err
	}
	fail := func(err error) (layer.Digest, error) {
		return "", fmt.Errorf("publish layer %s: %w", d, diskFull(err))
	}
	was := s.Verify(ctx, d)
	if was == nil {
		return d, nil
	}
	if !errors.Is(was, sandbox.ErrNotFound) && !errors.Is(was, layer.ErrDamaged) {
		return fail(was)
	}
	dir := filepath.Join(st.Dir(), d.Hex())
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fail(err)
	}
	parts := []struct {
		from, name string
		blob       *layer.Blob
	}{{metaPath, metaName, &m.Meta}, {dataPath, dataName, &m.Data}}
	for _, p := range parts {
		if p.blob.Size == 0 {
			continue
		}
		to := filepath.Join(dir, p.name)
		if err := moveFile(ctx, p.from, to); err != nil {
			return fail(err)
		}
		err := verifyFile(ctx, to, p.blob)
		if errors.Is(err, layer.ErrDamaged) { // not yet a store's fault
			err = fmt.Errorf("%w: %s is not what the manifest says: %v", sandbox.ErrInvalid, p.name, err)
		}
		if err != nil {
			return fail(err)
		}
		if err := seal(to); err != nil {
			return fail(err)
		}
	}
	manifest := filepath.Join(dir, manifestName)
	if err := os.WriteFile(manifest, encoded, 0o400); err != nil {
		return fail(err)
	}
	if err := seal(manifest); err != nil {
		return fail(err)
	}
	if err := syncDir(dir); err != nil {
		return fail(err)
	}
	if err := s.install(ctx, st, dir, d); err != nil {
		return fail(err)
	}
	return d, nil
}

// install renames a complete directory to its final name. If another publisher was first, that is as good; what
// is there but damaged is replaced. A rename over NFS may report an error although it happened, hence the look.
func (s *Store) install(ctx context.Context, st *staging.Stage, dir string, d layer.Digest) error {
	final := filepath.Join(s.layers, d.Hex())
	var err error
	for range 3 {
		if err = os.Rename(dir, final); err == nil {
			return syncDir(s.layers)
		}
		verr := s.Verify(ctx, d)
		if verr == nil {
			return nil
		}
		if !errors.Is(verr, layer.ErrDamaged) {
			return err
		}
		s.log.WarnContext(ctx, "replace damaged layer", "layer", d, "error", verr)
		// At once, where the file system can: readers see the one or the other. What was there goes with the stage.
		if linux.Exchange(dir, final) == nil {
			return syncDir(s.layers)
		}
		if rerr := os.Rename(final, filepath.Join(st.Dir(), "damaged")); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return rerr
		}
	}
	return err
}

// moveFile renames, or copies to another file system.
func moveFile(ctx context.Context, from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := copyFile(ctx, to, f, st.Size()); err != nil {
		return err
	}
	return os.Remove(from)
}

// copyFile writes exactly size bytes of r to a new file.
func copyFile(ctx context.Context, path string, r io.Reader, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(&ctxReader{ctx, r}, size))
	if err != nil {
		return diskFull(err)
	}
	if n < size {
		return fmt.Errorf("%w: it ends after %d of %d bytes", sandbox.ErrInvalid, n, size)
	}
	return f.Close()
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// seal makes a file durable and read-only.
func seal(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(0o400); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// diskFull gives a full disk its kind.
func diskFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", sandbox.ErrExhausted, err)
	}
	return err
}
