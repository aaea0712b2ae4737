package oci_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestBadManifests: what a registry answers to the first question. A manifest that is not what its digest says is refused, whatever it is.
func TestBadManifests(t *testing.T) {
	img := image(t, "amd64")
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	status := func(code int) func(http.ResponseWriter, []byte) {
		return func(w http.ResponseWriter, _ []byte) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		times int64
		say   func(w http.ResponseWriter, good []byte)
		want  error
	}{
		"another digest": {1 << 30, func(w http.ResponseWriter, good []byte) { _, _ = w.Write(append(good, ' ')) }, sandbox.ErrInvalid},
		"not JSON":       {1 << 30, func(w http.ResponseWriter, _ []byte) { _, _ = w.Write([]byte("<html>")) }, sandbox.ErrInvalid},
		"an artifact": {1 << 30, func(w http.ResponseWriter, good []byte) {
			w.Header().Set("Content-Type", "application/vnd.example.thing.v1+json")
			_, _ = w.Write(good)
		}, sandbox.ErrUnsupported},
		"cut for ever": {1 << 30, func(w http.ResponseWriter, good []byte) {
			_, _ = w.Write(good[:len(good)/2])
			panic(http.ErrAbortHandler)
		}, sandbox.ErrUnavailable},
		"503 twice":    {2, status(503), nil},
		"500 for ever": {1 << 30, status(500), sandbox.ErrUnavailable},
		"429 for ever": {1 << 30, status(429), sandbox.ErrUnavailable},
		"401":          {1 << 30, status(401), sandbox.ErrPermission},
		"403":          {1 << 30, status(403), sandbox.ErrPermission},
		"404":          {1 << 30, status(404), sandbox.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			var left atomic.Int64
			left.Store(c.times)
			host := server(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !armed.Load() || r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") || left.Add(-1) < 0 {
						next.ServeHTTP(w, r)
						return
					}
					rec := httptest.NewRecorder()
					next.ServeHTTP(rec, r)
					if ct := rec.Header().Get("Content-Type"); ct != "" {
						w.Header().Set("Content-Type", ct)
					}
					c.say(w, rec.Body.Bytes())
				})
			})
			push(t, host+"/app:1", img)
			armed.Store(true)
			_, err := pull(t, "docker://"+host+"/app@"+digest.String())
			if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			t.Log(err)
		})
	}
}
