package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/store/staging"
	"github.com/opendsec/dsec/sandbox"
)

const (
	manifestName = "manifest.json"
	metaName     = "meta.erofs"     // of earlier versions, and on the local disk
	packedName   = "meta.erofs.zst" // what is put instead
	dataName     = "data"
	// partSize is that of the parts in which large objects are sent, bytes; parts is how many at a time.
	partSize, parts = 16 << 20, 4
)

// Store is a bucket, or a part of one. It is safe for concurrent use, also by several processes.
type Store struct {
	c       *minio.Core
	bucket  string
	prefix  string
	staging *staging.Area
	log     *slog.Logger
}

var (
	_ layer.FileStore = (*Store)(nil)
)

// Open makes a client. stage is a local folder for what is being made. Nothing is asked of the service yet, so that a
// node starts while it is away. Error: sandbox.ErrInvalid.
func Open(c Config, stage string, log *slog.Logger) (*Store, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	area, err := staging.Open(stage, log)
	if err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	return &Store{c: client, bucket: c.Bucket, prefix: c.Prefix, staging: area, log: log}, nil
}

func (s *Store) key(d layer.Digest, name string) (string, error) {
	if _, err := layer.ParseDigest(string(d)); err != nil {
		return "", err
	}
	return s.prefix + "layers/" + d.Hex() + "/" + name, nil
}

// isMissing tells that an object is not there, from a bucket that is not.
func isMissing(err error) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && r.Code == minio.NoSuchKey
}

// unavailable gives an error of the service its kind.
func unavailable(ctx context.Context, d layer.Digest, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("layer %s: %w", d, plain(err))
}

// plain says of an error of the service what it means.
func plain(err error) error {
	var still *stalled
	if errors.As(err, &still) { // in so many words
		return fmt.Errorf("%w: %s", sandbox.ErrUnavailable, still)
	}
	switch r := minio.ToErrorResponse(err); r.Code {
	case minio.NoSuchBucket:
		err = fmt.Errorf("there is no bucket of that name: %w", err)
	case minio.AccessDenied, minio.InvalidAccessKeyID, minio.SignatureDoesNotMatch:
		err = fmt.Errorf("the service refuses the credentials: %w", err)
	}
	return fmt.Errorf("%w: s3: %w", sandbox.ErrUnavailable, err)
}

func notFound(d layer.Digest) error {
	return fmt.Errorf("layer %s: %w in this store: import it again", d, sandbox.ErrNotFound)
}

// get opens an object, or a range of it.
func (s *Store) get(ctx context.Context, d layer.Digest, name string, o minio.GetObjectOptions) (io.ReadCloser, error) {
	key, err := s.key(d, name)
	if err != nil {
		return nil, err
	}
	r, _, _, err := s.c.GetObject(ctx, s.bucket, key, o)
	return r, err
}

// Get reads a manifest and verifies it against its digest.
func (s *Store) Get(ctx context.Context, d layer.Digest) (*layer.Manifest, error) {
	if _, err := layer.ParseDigest(string(d)); err != nil {
		return nil, err
	}
	r, err := s.get(ctx, d, manifestName, minio.GetObjectOptions{})
	if isMissing(err) {
		return nil, notFound(d)
	}
	if err != nil {
		return nil, unavailable(ctx, d, err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, layer.MaxManifestSize))
	if err != nil {
		return nil, unavailable(ctx, d, err)
	}
	return layer.DecodeManifest(b, d)
}

// OpenData reads the data; a layer without any reads as empty.
func (s *Store) OpenData(ctx context.Context, d layer.Digest) (io.ReadCloser, error) {
	return s.open(ctx, d, dataName)
}

func (s *Store) open(ctx context.Context, d layer.Digest, name string) (io.ReadCloser, error) {
	m, err := s.Get(ctx, d)
	if err != nil {
		return nil, err
	}
	if name == dataName && m.Data.Size == 0 {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	r, err := s.get(ctx, d, name, minio.GetObjectOptions{})
	if err != nil {
		return nil, unavailable(ctx, d, err)
	}
	return r, nil
}

// ReadData reads a part of the data in one request.
func (s *Store) ReadData(ctx context.Context, d layer.Digest, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	var o minio.GetObjectOptions
	if err := o.SetRange(off, off+int64(len(p))-1); err != nil {
		return fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrInvalid, err)
	}
	r, err := s.get(ctx, d, dataName, o)
	if err == nil {
		defer r.Close()
		_, err = io.ReadFull(r, p)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sandbox.ErrInvalid):
		return err
	case isMissing(err):
		m, gerr := s.Get(ctx, d)
		if gerr != nil {
			return gerr
		}
		if m.Data.Size == 0 {
			err = layer.Truncated(off, len(p))
		}
	case minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable,
		ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && s.isShort(ctx, d, off+int64(len(p))):
		err = layer.Truncated(off, len(p))
	}
	return unavailable(ctx, d, err)
}

// isShort tells a truncated object from a connection that was cut.
func (s *Store) isShort(ctx context.Context, d layer.Digest, want int64) bool {
	key, err := s.key(d, dataName)
	if err != nil {
		return false
	}
	st, err := s.c.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	return err == nil && st.Size < want
}

// List returns what is published, in no particular order.
func (s *Store) List(ctx context.Context) ([]layer.Digest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out []layer.Digest
	root := s.prefix + "layers/"
	for o := range s.c.Client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: root, Recursive: true}) {
		if o.Err != nil {
			return nil, fmt.Errorf("list layers: %w", plain(o.Err))
		}
		hex, name, _ := strings.Cut(strings.TrimPrefix(o.Key, root), "/")
		if d, err := layer.ParseDigest("b3:" + hex); err == nil && name == manifestName {
			out = append(out, d)
		}
	}
	return out, nil
}

// Delete removes a layer: its manifest first, so that it is not there any more, then the rest.
func (s *Store) Delete(ctx context.Context, d layer.Digest) error {
	if _, err := s.Get(ctx, d); err != nil && !errors.Is(err, layer.ErrDamaged) {
		return err
	}
	for _, name := range []string{manifestName, packedName, metaName, dataName} {
		key, err := s.key(d, name)
		if err != nil {
			return err
		}
		if err := s.c.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}); err != nil && !isMissing(err) {
			return unavailable(ctx, d, err)
		}
	}
	s.abortUploads(ctx, s.prefix+"layers/"+d.Hex()+"/", time.Now().Add(time.Hour)) // all of them, whatever the clocks say
	return nil
}

// Stage makes a private directory on the local disk.
func (s *Store) Stage(ctx context.Context) (layer.Stage, error) { return s.staging.New(ctx) }

// Verify reads a whole layer and compares it with its digest.
func (s *Store) Verify(ctx context.Context, d layer.Digest) error {
	m, err := s.Get(ctx, d)
	if err != nil {
		return err
	}
	metadata := s.checkMeta(ctx, d, &m.Meta)
	if metadata != nil && !errors.Is(metadata, layer.ErrDamaged) {
		return metadata
	}
	return layer.Damages(metadata, s.checkData(ctx, d, &m.Data))
}

// checkData reads the data and compares it with the manifest. Errors: layer.ErrDamaged, sandbox.ErrUnavailable.
func (s *Store) checkData(ctx context.Context, d layer.Digest, b *layer.Blob) error {
	if b.Size == 0 {
		return nil
	}
	r, err := s.get(ctx, d, dataName, minio.GetObjectOptions{})
	if isMissing(err) {
		return fmt.Errorf("layer %s: data: %w: %w: the object is missing", d, sandbox.ErrUnavailable, layer.ErrDamaged)
	}
	if err != nil {
		return unavailable(ctx, d, err)
	}
	defer r.Close()
	return compare(r, b, func(err error) error {
		if errors.Is(err, layer.ErrDamaged) {
			return fmt.Errorf("layer %s: %s: %w", d, dataName, err)
		}
		return unavailable(ctx, d, err)
	})
}

// remove is for files that PutFiles consumes.
func remove(paths ...string) {
	for _, p := range paths {
		if p != "" {
			_ = os.Remove(p)
		}
	}
}
