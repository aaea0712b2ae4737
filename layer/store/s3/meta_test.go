package s3_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/s3"
	"github.com/opendsec/dsec/sandbox"
)

// TestPackedMetadata: metadata lies compressed, is what it was when read, and damage to it is noticed and mended.
func TestPackedMetadata(t *testing.T) {
	svc := service(t)
	ctx := t.Context()
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	s := layertest.NewSample(t, 1, 1000)
	if err := put(ctx, st, s); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(svc.Dir, bucket, "layers", s.Digest.Hex())
	packed, plain := filepath.Join(dir, "meta.erofs.zst"), filepath.Join(dir, "meta.erofs")
	good, err := os.ReadFile(packed)
	if err != nil {
		t.Fatal(err)
	}
	if len(good) >= len(s.Meta) {
		t.Errorf("%d bytes of metadata became %d", len(s.Meta), len(good))
	}
	meta := func() ([]byte, error) {
		r, err := st.OpenMeta(ctx, s.Digest)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	if b, err := meta(); err != nil || !bytes.Equal(b, s.Meta) {
		t.Errorf("other metadata, %v", err)
	}
	changed := bytes.Clone(good)
	changed[len(changed)/2] ^= 0x40
	for name, bad := range map[string][]byte{"cut": good[:len(good)/2], "empty": {}, "something else": []byte("<html>sorry</html>"), "changed": changed} {
		if err := os.WriteFile(packed, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := st.Verify(ctx, s.Digest); !errors.Is(err, layer.ErrDamaged) || !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s: verify: %v", name, err)
		}
		if err := put(ctx, st, s); err != nil {
			t.Errorf("%s: publish again: %v", name, err)
		}
		if err := st.Verify(ctx, s.Digest); err != nil {
			t.Errorf("%s: after publishing again: %v", name, err)
		}
	}
	// As an earlier version left it.
	if err := errors.Join(os.Remove(packed), os.WriteFile(plain, s.Meta, 0o600)); err != nil {
		t.Fatal(err)
	}
	if b, err := meta(); err != nil || !bytes.Equal(b, s.Meta) {
		t.Errorf("uncompressed: other metadata, %v", err)
	}
	if err := st.Verify(ctx, s.Digest); err != nil {
		t.Errorf("uncompressed: %v", err)
	}
	// Without any, it is published again.
	if err := os.Remove(plain); err != nil {
		t.Fatal(err)
	}
	if _, err := meta(); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("no metadata: %v", err)
	}
	if err := errors.Join(put(ctx, st, s), st.Verify(ctx, s.Digest)); err != nil {
		t.Errorf("published again: %v", err)
	}
	if err := st.Delete(ctx, s.Digest); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
		t.Errorf("left after Delete: %v", left)
	}
}
