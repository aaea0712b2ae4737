package oci_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// An import that was cut off is gone on with: what was fetched is not fetched again, whatever the registry can do, and what was
// damaged meanwhile is.
func TestResume(t *testing.T) {
	body := make([]byte, 1<<20)
	_, _ = rand.Read(body)
	img := configure(t, appendLayers(t, image(t, "amd64"), gzipLayer(t, layertest.Tar(t, layertest.Entry{Name: "big", Body: string(body)}))), "amd64")
	// What a registry that knows no ranges answers when it is asked for one: all of it, or a refusal of its own kind.
	for _, answer := range []int{0, http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusRequestedRangeNotSatisfiable,
		http.StatusInternalServerError, http.StatusNotImplemented} {
		ranges := answer == 0
		var broken atomic.Bool
		var sent, ranged atomic.Int64
		host := server(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
					next.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				plain := r.Clone(r.Context())
				plain.Header.Del("Range")
				next.ServeHTTP(rec, plain)
				b := rec.Body.Bytes()
				if r.Header.Get("Range") != "" {
					ranged.Add(1)
					if answer >= http.StatusBadRequest {
						w.WriteHeader(answer)
						return
					}
				}
				if broken.Load() && len(b) > 1<<19 { // its first half, then nothing
					w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
					_, _ = w.Write(b[:len(b)/2])
					panic(http.ErrAbortHandler)
				}
				if !ranges {
					r = plain
				}
				counted := &countWriter{ResponseWriter: w, n: &sent}
				http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(b))
			})
		})
		source := push(t, host+"/app:1", img)
		keep := filepath.Join(t.TempDir(), "keep")
		o := oci.RegistryOptions{Retry: time.Millisecond, Keep: keep}
		get := func() (*tree.Result, error) {
			found, err := oci.Pull(t.Context(), source, o)
			if err != nil {
				t.Fatal(err)
			}
			return flatten(t, found)
		}
		broken.Store(true)
		if _, err := get(); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Fatalf("cut for ever: %v", err)
		}
		n, err := oci.Kept(keep)
		if err != nil || n < 1<<19 {
			t.Fatalf("kept %d bytes, %v", n, err)
		}
		broken.Store(false)
		sent.Store(0)
		ranged.Store(0)
		r, err := get()
		if err != nil {
			t.Fatalf("range answered with %d: %v", answer, err)
		}
		if got, err := os.ReadFile(filepath.Join(layertest.Mount(t, r.MetaPath, r.DataPath), "big")); err != nil || !bytes.Equal(got, body) {
			t.Errorf("range answered with %d: the file has %d other bytes, %v", answer, len(got), err)
		}
		if ranged.Load() == 0 || ranges && sent.Load() > 3<<18 {
			t.Errorf("range answered with %d: %d bytes were fetched again, %d requests for a range", answer, sent.Load(), ranged.Load())
		}
		if n, err := oci.Kept(keep); n != 0 || err != nil {
			t.Errorf("%d bytes are left after an import that succeeded, %v", n, err)
		}

		// Whatever lies there is not believed.
		damage := func(suffix string) {
			big := biggest(t, img)
			path := filepath.Join(keep, strings.Replace(big.String(), ":", "-", 1)+suffix)
			if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		damage(".part")
		if again, err := get(); err != nil || again.Digest != r.Digest {
			t.Errorf("range answered with %d: with a damaged beginning: %v", answer, err)
		}
		damage("")
		if again, err := get(); err != nil || again.Digest != r.Digest {
			t.Errorf("after a damaged layer: %v", err)
		}

		// Several imports of one image at once fetch it once.
		sent.Store(0)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				found, err := oci.Pull(context.WithoutCancel(t.Context()), source, o)
				if err == nil {
					_, err = flatten(t, found)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

func biggest(t *testing.T, img v1.Image) v1.Hash {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	best := m.Layers[0]
	for _, l := range m.Layers {
		if l.Size > best.Size {
			best = l
		}
	}
	return best.Digest
}

type countWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countWriter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}
