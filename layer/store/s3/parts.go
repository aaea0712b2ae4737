package s3

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/opendsec/dsec/layer"
)

const (
	// maxParts is what a service takes of one object.
	maxParts = 10_000
	// keepUploads is for how long what an upload has sent before it was interrupted waits for another that goes on with it.
	keepUploads = 24 * time.Hour
)

// sendParts uploads a large file in parts. One that was interrupted, by whatever, is gone on with: what the service has of it and is
// the same is not sent again. Another publisher may send the same at the same time.
func (s *Store) sendParts(ctx context.Context, d layer.Digest, name, key string, f *os.File, size int64) error {
	s.clearUploads(ctx)
	for try := 0; ; try++ {
		err := s.tryParts(ctx, key, f, size)
		if minio.ToErrorResponse(err).Code != minio.NoSuchUpload || try == 3 {
			if err != nil {
				err = fmt.Errorf("publish %s: %w", name, unavailable(ctx, d, err))
			}
			return err
		}
		// Another publisher has completed it, or it was cleared away.
		if there, err := s.has(ctx, key, size); err != nil || there {
			return err
		}
	}
}

func (s *Store) tryParts(ctx context.Context, key string, f *os.File, size int64) error {
	upload, sent, err := s.begunUpload(ctx, key)
	if err != nil {
		return err
	}
	if upload == "" {
		if upload, err = s.c.NewMultipartUpload(ctx, s.bucket, key, minio.PutObjectOptions{ContentType: "application/octet-stream"}); err != nil {
			return err
		}
	}
	each := int64(partSize)
	for each*maxParts < size {
		each += partSize
	}
	all := make([]minio.CompletePart, (size+each-1)/each)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parts)
	for i := range all {
		part := io.NewSectionReader(f, int64(i)*each, min(each, size-int64(i)*each))
		g.Go(func() error {
			h := md5.New() // what services call a part by, and check it with
			if _, err := io.Copy(h, part); err != nil {
				return err
			}
			sum := h.Sum(nil)
			if have, ok := sent[i+1]; ok && have.Size == part.Size() && strings.Trim(have.ETag, `"`) == hex.EncodeToString(sum) {
				all[i] = minio.CompletePart{PartNumber: i + 1, ETag: have.ETag}
				return nil
			}
			if _, err := part.Seek(0, io.SeekStart); err != nil {
				return err
			}
			done, err := s.c.PutObjectPart(gctx, s.bucket, key, upload, i+1, part, part.Size(), minio.PutObjectPartOptions{Md5Base64: base64.StdEncoding.EncodeToString(sum)})
			all[i] = minio.CompletePart{PartNumber: i + 1, ETag: done.ETag}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err = s.c.CompleteMultipartUpload(ctx, s.bucket, key, upload, all, minio.PutObjectOptions{})
	return err
}

// begunUpload finds an upload of an object that was interrupted, and its parts by number; "" = there is none.
func (s *Store) begunUpload(ctx context.Context, key string) (upload string, sent map[int]minio.ObjectPart, err error) {
	list, err := s.c.ListMultipartUploads(ctx, s.bucket, key, "", "", "", 100)
	if err != nil {
		return "", nil, err
	}
	var newest time.Time
	for _, u := range list.Uploads {
		if u.Key == key && (upload == "" || u.Initiated.After(newest)) {
			upload, newest = u.UploadID, u.Initiated
		}
	}
	if upload == "" {
		return "", nil, nil
	}
	sent = map[int]minio.ObjectPart{}
	for marker := 0; ; {
		page, err := s.c.ListObjectParts(ctx, s.bucket, key, upload, marker, 1000)
		if err != nil {
			return "", nil, err
		}
		for _, p := range page.ObjectParts {
			sent[p.PartNumber] = p
		}
		if !page.IsTruncated || page.NextPartNumberMarker <= marker {
			return upload, sent, nil
		}
		marker = page.NextPartNumberMarker
	}
}

// has tells whether an object is there in its size.
func (s *Store) has(ctx context.Context, key string, size int64) (bool, error) {
	st, err := s.c.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if isMissing(err) {
		return false, nil
	}
	return err == nil && st.Size == size, err
}

// clearUploads removes what interrupted uploads have sent that nobody went on with. It is a courtesy: its errors are only logged.
func (s *Store) clearUploads(ctx context.Context) {
	s.abortUploads(ctx, s.prefix+"layers/", time.Now().Add(-keepUploads))
}

// abortUploads removes those of objects whose names begin so, and that are as old.
func (s *Store) abortUploads(ctx context.Context, prefix string, before time.Time) {
	list, err := s.c.ListMultipartUploads(ctx, s.bucket, prefix, "", "", "", 1000)
	for _, u := range list.Uploads {
		if strings.HasPrefix(u.Key, prefix) && u.Initiated.Before(before) {
			err = errors.Join(err, s.c.AbortMultipartUpload(ctx, s.bucket, u.Key, u.UploadID))
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.DebugContext(ctx, "clear interrupted uploads", "error", err)
	}
}
