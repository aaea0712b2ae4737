package oci_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// A registry that takes connections and answers nothing, from whatever step on, is given up once, with words that say so; one that
// sends slowly is not.
func TestSilentRegistry(t *testing.T) {
	img := image(t, "amd64")
	stages := map[string]struct {
		path string // of the requests that are not answered
		head bool   // their headers are
	}{
		"from the first": {path: "/v2/"}, "manifest": {path: "/manifests/"}, "blob": {path: "/blobs/"}, "in a blob": {path: "/blobs/", head: true},
	}
	for name, s := range stages {
		for _, keep := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var armed atomic.Bool
				over := make(chan struct{})
				host := server(t, func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if !armed.Load() || !strings.Contains(r.URL.Path, s.path) {
							next.ServeHTTP(w, r)
							return
						}
						if s.head {
							rec := httptest.NewRecorder()
							next.ServeHTTP(rec, r)
							w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
							_, _ = w.Write(rec.Body.Bytes()[:1])
							_ = http.NewResponseController(w).Flush()
						}
						select {
						case <-over:
						case <-r.Context().Done():
						}
					})
				})
				t.Cleanup(func() { close(over) })
				source := push(t, host+"/app:1", img)
				armed.Store(true)
				o := oci.RegistryOptions{Retry: time.Millisecond, Patience: 2 * time.Second}
				if keep {
					o.Keep = filepath.Join(t.TempDir(), "keep")
				}
				// Far more than it should take, and less than it did when each attempt waited for itself.
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
				defer cancel()
				found, err := oci.Pull(ctx, source, o)
				if err == nil {
					b, berr := tree.New(t.TempDir(), tree.Options{})
					if berr != nil {
						t.Fatal(berr)
					}
					defer b.Close()
					err = found.AddTo(ctx, b, t.TempDir(), nil)
				}
				if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "the registry sent nothing for") {
					t.Errorf("got %v", err)
				}
				t.Log(err)
			})
		}
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		const patience, pieces = 6 * time.Second, 20
		var armed atomic.Bool
		host := server(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !armed.Load() || !strings.Contains(r.URL.Path, "/blobs/") {
					next.ServeHTTP(w, r)
					return
				}
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				b := rec.Body.Bytes()
				w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
				for n := range pieces { // all of it takes longer than the registry's patience
					_, _ = w.Write(b[n*len(b)/pieces : (n+1)*len(b)/pieces])
					_ = http.NewResponseController(w).Flush()
					time.Sleep(patience / pieces * 5 / 4)
				}
			})
		})
		found, err := oci.Pull(t.Context(), push(t, host+"/app:1", img), oci.RegistryOptions{Retry: time.Millisecond, Patience: patience})
		if err != nil {
			t.Fatal(err)
		}
		armed.Store(true)
		if _, err := flatten(t, found); err != nil {
			t.Errorf("a slow registry: %v", err)
		}
	})
}

// A registry whose connections break at once is asked four times, and what went wrong is told: waiting between attempts is not its
// silence.
func TestBrokenAtOnce(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	host := server(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			asked.Add(1)
			panic(http.ErrAbortHandler)
		})
	})
	// It waits for 7 s in all.
	_, err := oci.Pull(t.Context(), host+"/app:1", oci.RegistryOptions{Retry: time.Second, Patience: 3 * time.Second})
	if !errors.Is(err, sandbox.ErrUnavailable) || strings.Contains(err.Error(), "sent nothing") || !strings.Contains(err.Error(), "EOF") || asked.Load() != 4 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}
