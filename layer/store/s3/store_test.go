package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/s3"
	"github.com/opendsec/dsec/sandbox"
)

const bucket = "layers"

// service starts an S3 service for one test.
func service(t *testing.T) *testkit.S3 {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the service keeps owners of files")
	}
	s, err := testkit.StartS3(t.Context(), filepath.Join(t.TempDir(), "s3"), bucket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("AWS_ACCESS_KEY_ID", s.Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s.Secret)
	return s
}

func open(t *testing.T, c s3.Config) *s3.Store {
	t.Helper()
	s, err := s3.Open(c, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	svc := service(t)
	layertest.RunStore(t, func(t *testing.T, name string) layer.Store {
		prefix := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + "/" + name + "/"
		return open(t, s3.Config{Bucket: bucket, Prefix: prefix, Endpoint: svc.Endpoint})
	})
}

func put(ctx context.Context, st *s3.Store, s *layertest.Sample) error {
	_, err := st.Put(ctx, s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(s.Data))
	return err
}

// TestLargeInParts: more than one part, and the reading of what it became.
func TestLargeInParts(t *testing.T) {
	svc := service(t)
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	s := layertest.NewSample(t, 1, 35<<20)
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	if err := st.Verify(t.Context(), s.Digest); err != nil {
		t.Error(err)
	}
	r, err := st.OpenData(t.Context(), s.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, s.Data) {
		t.Errorf("other content, %v", err)
	}
}

// TestDamage: what the service keeps is changed, cut and taken away.
func TestDamage(t *testing.T) {
	svc := service(t)
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	s := layertest.NewSample(t, 1, 3*layer.ChunkSize)
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(svc.Dir, bucket, "layers", s.Digest.Hex(), "data")
	f, err := os.OpenFile(data, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("X!"), 300_000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := st.Verify(t.Context(), s.Digest); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("a changed byte: %v", err)
	}
	if err := os.Truncate(data, layer.ChunkSize); err != nil {
		t.Fatal(err)
	}
	if err := st.ReadData(t.Context(), s.Digest, make([]byte, 10), 2*layer.ChunkSize); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("beyond a cut: %v", err)
	}
	if err := st.ReadData(t.Context(), s.Digest, make([]byte, 100), layer.ChunkSize-50); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("across a cut: %v", err)
	}
	// Published again, it is whole again.
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	if err := st.Verify(t.Context(), s.Digest); err != nil {
		t.Error(err)
	}
}

// TestGone: a service that does not answer, or answers late, is unavailable, and serves again when it is back.
func TestGone(t *testing.T) {
	svc := service(t)
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	s := layertest.NewSample(t, 1, 100)
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 100)
	if err := svc.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := st.ReadData(ctx, s.Digest, p, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of a service that stands still: %v", err)
	}
	if err := svc.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := st.ReadData(t.Context(), s.Digest, p, 0); err != nil {
		t.Error(err)
	}
	if err := svc.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := st.ReadData(t.Context(), s.Digest, p, 0); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("of a service that is gone: %v", err)
	}
	if _, err := st.Get(t.Context(), s.Digest); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("a manifest of a service that is gone: %v", err)
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := st.ReadData(t.Context(), s.Digest, p, 0); err != nil || !bytes.Equal(p, s.Data[:100]) {
		t.Errorf("of a service that is back: %v", err)
	}
}

// TestStandsStill: every way to a service that answers nothing ends in the time that is given, and says so; what is slow but moves goes on.
func TestStandsStill(t *testing.T) {
	const after = 700 * time.Millisecond
	svc := service(t)
	usual := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint, Timeout: after})
	s, other := layertest.NewSample(t, 1, 3<<20), layertest.NewSample(t, 2, 100)
	if err := put(t.Context(), usual, s); err != nil {
		t.Fatal(err)
	}
	r, err := st.OpenData(t.Context(), s.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, 4096); err != nil {
		t.Fatal(err)
	}
	<-time.After(after + after/2) // the reader's time, which is not the service's
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Errorf("a reader that took its time: %v", err)
	}
	if err := svc.Pause(); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"get":     func() error { _, err := st.Get(t.Context(), s.Digest); return err },
		"meta":    func() error { _, err := st.OpenMeta(t.Context(), s.Digest); return err },
		"read":    func() error { return st.ReadData(t.Context(), s.Digest, make([]byte, 10), 0) },
		"verify":  func() error { return st.Verify(t.Context(), s.Digest) },
		"publish": func() error { return put(t.Context(), st, other) },
		"list":    func() error { _, err := st.List(t.Context()); return err },
		"delete":  func() error { return st.Delete(t.Context(), s.Digest) },
	} {
		if err := ask(); !errors.Is(err, sandbox.ErrUnavailable) || !strings.HasSuffix(err.Error(), "unavailable: the store did not answer within 700ms") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := svc.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), usual, other); err != nil {
		t.Error(err)
	}
}

func TestBadConfiguration(t *testing.T) {
	svc := service(t)
	s := layertest.NewSample(t, 1, 100)
	for name, c := range map[string]s3.Config{
		"no bucket":        {Endpoint: svc.Endpoint},
		"endpoint":         {Bucket: bucket, Endpoint: "127.0.0.1:1"},
		"endpoint's path":  {Bucket: bucket, Endpoint: "http://127.0.0.1:1/x"},
		"credentials file": {Bucket: bucket, Endpoint: svc.Endpoint, CredentialsFile: "/nonexistent"},
	} {
		if _, err := s3.Open(c, t.TempDir(), nil); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	missing := open(t, s3.Config{Bucket: "other", Endpoint: svc.Endpoint})
	if err := put(t.Context(), missing, s); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "no bucket") {
		t.Errorf("no such bucket: %v", err)
	}
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(secret string) {
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+svc.Access+"\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	write("wrong")
	if err := put(t.Context(), open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint, CredentialsFile: file}), s); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("wrong credentials: %v", err)
	}
	write(svc.Secret)
	if err := put(t.Context(), open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint, CredentialsFile: file}), s); err != nil {
		t.Errorf("credentials from a file: %v", err)
	}
	if _, err := s3.Open(s3.Config{Bucket: bucket, Endpoint: svc.Endpoint}, t.TempDir(), nil); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("without credentials: %v", err)
	}
}

// TestRepair: publishing a layer again mends it.
func TestRepair(t *testing.T) {
	svc := service(t)
	st := open(t, s3.Config{Bucket: bucket, Endpoint: svc.Endpoint})
	layertest.RunRepair(t, st, layertest.DamageFiles(func(d layer.Digest) string {
		return filepath.Join(svc.Dir, bucket, "layers", d.Hex())
	}, "meta.erofs.zst", "data"))
}
