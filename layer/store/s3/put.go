package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Put publishes a layer from streams: by way of the local disk, where they are compared with the manifest.
func (s *Store) Put(ctx context.Context, m *layer.Manifest, meta, data io.Reader) (layer.Digest, error) {
	st, err := s.staging.New(ctx)
	if err != nil {
		return "", err
	}
	defer st.Close()
	paths := [2]string{filepath.Join(st.Dir(), metaName), ""}
	if err := spool(ctx, paths[0], meta, m.Meta.Size); err != nil {
		return "", fmt.Errorf("publish layer: metadata: %w", err)
	}
	if m.Data.Size > 0 {
		paths[1] = filepath.Join(st.Dir(), dataName)
		if err := spool(ctx, paths[1], data, m.Data.Size); err != nil {
			return "", fmt.Errorf("publish layer: data: %w", err)
		}
	}
	return s.PutFiles(ctx, m, paths[0], paths[1])
}

// spool writes exactly size bytes of r to a new file.
func spool(ctx context.Context, path string, r io.Reader, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(f, &ctxReader{ctx, io.LimitReader(r, size)})
	if err != nil {
		return err
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

// PutFiles publishes a layer from files, which it removes. Data and metadata go first, the manifest last.
func (s *Store) PutFiles(ctx context.Context, m *layer.Manifest, metaPath, dataPath string) (layer.Digest, error) {
	encoded, d, err := m.Encode()
	if err != nil {
		return "", err
	}
	files := []struct {
		name, path string
		blob       *layer.Blob
	}{{dataName, dataPath, &m.Data}, {metaName, metaPath, &m.Meta}}
	for _, f := range files {
		if err := verify(ctx, f.path, f.blob); err != nil {
			return "", fmt.Errorf("publish layer %s: %s: %w", d, f.name, err)
		}
	}
	there, err := s.announced(ctx, d)
	if err != nil {
		return "", err
	}
	if m.Data.Size > 0 {
		// A large object may be there without a manifest: of an earlier publication that did not come to it.
		if err := s.make(ctx, d, dataName, there || m.Data.Size > partSize, func() error { return s.checkData(ctx, d, &m.Data) },
			func() error { return s.send(ctx, d, dataName, dataPath, m.Data.Size) }); err != nil {
			return "", err
		}
	}
	if err := s.make(ctx, d, metaName, there, func() error { return s.checkMeta(ctx, d, &m.Meta) },
		func() error { return s.sendMeta(ctx, d, metaPath) }); err != nil {
		return "", err
	}
	if !there {
		if err := s.announce(ctx, d, encoded); err != nil {
			return "", err
		}
	}
	remove(metaPath, dataPath)
	return d, nil
}

// verify compares a file with its description.
func verify(ctx context.Context, path string, b *layer.Blob) error {
	if b.Size == 0 {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != b.Size {
		return fmt.Errorf("%w: it is not as long as the manifest says", sandbox.ErrInvalid)
	}
	err = b.Verify(ctx, f)
	if errors.Is(err, layer.ErrDamaged) { // not yet a store's fault
		return fmt.Errorf("%w: it is not what the manifest says: %v", sandbox.ErrInvalid, err)
	}
	return err
}

// make brings one object of a layer about: it is sent unless it may be there and is what it should be. One that is damaged is
// replaced, which a service does at once: readers get the one or the other.
func (s *Store) make(ctx context.Context, d layer.Digest, name string, maybe bool, check, send func() error) error {
	if maybe {
		err := check()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, layer.ErrDamaged) {
			return err
		}
		s.log.InfoContext(ctx, "send what is missing or damaged", "layer", d, "object", name, "found", err)
	}
	return send()
}

// announced tells whether a layer has a manifest. One that is damaged is removed.
func (s *Store) announced(ctx context.Context, d layer.Digest) (bool, error) {
	switch _, err := s.Get(ctx, d); {
	case err == nil:
		return true, nil
	case errors.Is(err, sandbox.ErrNotFound):
		return false, nil
	case errors.Is(err, layer.ErrDamaged):
		s.log.WarnContext(ctx, "replace damaged layer", "layer", d, "error", err)
		return false, s.withdraw(ctx, d)
	default:
		return false, err
	}
}

// sendMeta uploads the metadata, compressed.
func (s *Store) sendMeta(ctx context.Context, d layer.Digest, path string) error {
	st, err := s.staging.New(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	packed, size, err := packMeta(ctx, st.Dir(), path)
	if err != nil {
		return fmt.Errorf("publish layer %s: compress metadata: %w", d, err)
	}
	return s.send(ctx, d, packedName, packed, size)
}

// withdraw removes a manifest that is of no use.
func (s *Store) withdraw(ctx context.Context, d layer.Digest) error {
	key, err := s.key(d, manifestName)
	if err != nil {
		return err
	}
	if err := s.c.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}); err != nil && !isMissing(err) {
		return unavailable(ctx, d, err)
	}
	return nil
}

// send uploads a file; a large one in parts. Another publisher may do the same: the content is the same too.
func (s *Store) send(ctx context.Context, d layer.Digest, name, path string, size int64) error {
	key, err := s.key(d, name)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if size > partSize {
		return s.sendParts(ctx, d, name, key, f, size)
	}
	_, err = s.c.Client.PutObject(ctx, s.bucket, key, f, size, minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, unavailable(ctx, d, err))
	}
	return nil
}

// announce writes the manifest unless it is there.
func (s *Store) announce(ctx context.Context, d layer.Digest, encoded []byte) error {
	key, err := s.key(d, manifestName)
	if err != nil {
		return err
	}
	o := minio.PutObjectOptions{ContentType: "application/json"}
	o.SetMatchETagExcept("*")
	for try := 0; ; try++ {
		_, err = s.c.Client.PutObject(ctx, s.bucket, key, bytes.NewReader(encoded), int64(len(encoded)), o)
		r := minio.ToErrorResponse(err)
		switch {
		case err == nil, r.StatusCode == http.StatusPreconditionFailed: // another publisher was first
			return nil
		case r.StatusCode == http.StatusConflict && try < 20: // another is being first, and may yet fail
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return fmt.Errorf("publish manifest: %w", unavailable(ctx, d, err))
	}
}
