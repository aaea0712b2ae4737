package s3

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// maxMetaWindow is what a reader of compressed metadata keeps in memory, bytes: the encoder's greatest window.
const maxMetaWindow = 8 << 20

// packMeta compresses a metadata image: names and inodes shrink to a fifth, and a node waits for them before it can
// mount. The copy lies in dir, which is the caller's.
func packMeta(ctx context.Context, dir, path string) (packed string, size int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer in.Close()
	packed = filepath.Join(dir, packedName)
	out, err := os.OpenFile(packed, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", 0, err
	}
	defer out.Close()
	// No checksum of its own: what is unpacked is compared with the manifest.
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(maxMetaWindow))
	if err != nil {
		return "", 0, err
	}
	_, err = io.Copy(z, &ctxReader{ctx, in})
	if err = errors.Join(err, z.Close()); err != nil {
		return "", 0, err
	}
	st, err := out.Stat()
	if err != nil {
		return "", 0, err
	}
	return packed, st.Size(), out.Close()
}

// OpenMeta reads the metadata image, which travels compressed. Layers of earlier versions have it as it is.
func (s *Store) OpenMeta(ctx context.Context, d layer.Digest) (io.ReadCloser, error) {
	r, err := s.get(ctx, d, packedName, minio.GetObjectOptions{})
	if isMissing(err) {
		return s.open(ctx, d, metaName)
	}
	if err != nil {
		return nil, unavailable(ctx, d, err)
	}
	u := &unpacker{ctx: ctx, digest: d, from: r}
	if u.z, err = zstd.NewReader(bufio.NewReaderSize(u.raw(), 256<<10), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxMetaWindow)); err != nil {
		r.Close()
		return nil, fmt.Errorf("layer %s: metadata: %w", d, err)
	}
	return u, nil
}

// unpacker tells what the service did wrong from what is wrong with the content.
type unpacker struct {
	ctx    context.Context
	digest layer.Digest
	from   io.ReadCloser
	failed error // of from
	z      *zstd.Decoder
}

type rawReader struct{ u *unpacker }

func (u *unpacker) raw() io.Reader { return &rawReader{u} }

func (r *rawReader) Read(p []byte) (int, error) {
	n, err := r.u.from.Read(p)
	if err != nil && err != io.EOF {
		r.u.failed = err
	}
	return n, err
}

// Read gives the image. Errors: sandbox.ErrUnavailable, with layer.ErrDamaged where the object is not what was put.
func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.z.Read(p)
	switch {
	case err == nil, err == io.EOF:
		return n, err
	case u.failed != nil:
		return n, unavailable(u.ctx, u.digest, u.failed)
	}
	return n, fmt.Errorf("layer %s: metadata: %w: %w: it cannot be unpacked: %v", u.digest, sandbox.ErrUnavailable, layer.ErrDamaged, err)
}

// Close lets go of the object; it may be called more than once and during Read.
func (u *unpacker) Close() error { return u.from.Close() }

// checkMeta reads the metadata and compares it with the manifest. Errors: layer.ErrDamaged, sandbox.ErrUnavailable.
func (s *Store) checkMeta(ctx context.Context, d layer.Digest, b *layer.Blob) error {
	r, err := s.OpenMeta(ctx, d)
	if isMissing(err) {
		return fmt.Errorf("layer %s: metadata: %w: %w: the object is missing", d, sandbox.ErrUnavailable, layer.ErrDamaged)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	return compare(r, b, func(err error) error { return fmt.Errorf("layer %s: metadata: %w", d, err) })
}

// compare reads a whole object and compares it with its description.
func compare(r io.Reader, b *layer.Blob, in func(error) error) error {
	var c layer.Chunker
	if _, err := io.Copy(&c, io.LimitReader(r, b.Size+1)); err != nil {
		return in(err)
	}
	got := c.Blob()
	if err := b.Compare(&got); err != nil {
		return in(err)
	}
	return nil
}
