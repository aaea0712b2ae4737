package e2b

import (
	"compress/gzip"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/opendsec/dsec/internal/testkit"
)

// image serves Debian as an image in a registry of the test, and returns its reference.
func image(t *testing.T) string {
	t.Helper()
	base, err := testkit.DebianBase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	text := strings.TrimPrefix(srv.URL, "http://") + "/team/debian:test"
	ref, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromFile(base, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Env: []string{"OF_THE_IMAGE=yes", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})
	}
	if err == nil {
		err = remote.Write(ref, img, remote.WithContext(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}
