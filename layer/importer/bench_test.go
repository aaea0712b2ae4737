package importer_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/posix"
)

// BenchmarkDebianBase imports a real distribution, publication with its syncs included; MB/s are of the plain
// tar.
func BenchmarkDebianBase(b *testing.B) {
	tarred, err := os.ReadFile(layertest.DebianBase(b))
	if err != nil {
		b.Fatal(err)
	}
	store, err := posix.Open(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(importer.New(store, importer.Options{}))
	defer srv.Close()
	forget := func() {
		b.Helper()
		all, err := store.List(b.Context())
		if err != nil || len(all) != 1 {
			b.Fatalf("%d layers, %v", len(all), err)
		}
		if err := store.Delete(b.Context(), all[0]); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("upload_tar", func(b *testing.B) {
		b.SetBytes(int64(len(tarred)))
		for b.Loop() {
			req, err := http.NewRequest(http.MethodPut, srv.URL+"/v1/layers?name=debian", bytes.NewReader(tarred))
			if err != nil {
				b.Fatal(err)
			}
			resp, err := srv.Client().Do(req)
			if err != nil {
				b.Fatal(err)
			}
			answer, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !strings.Contains(string(answer), `"layer"`) {
				b.Fatalf("%s, %v", answer, err)
			}
			b.StopTimer()
			forget()
			b.StartTimer()
		}
	})
	b.Run("pull_gzip", func(b *testing.B) {
		var zipped bytes.Buffer
		z, err := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := z.Write(tarred); err != nil {
			b.Fatal(err)
		}
		if err := z.Close(); err != nil {
			b.Fatal(err)
		}
		reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		defer reg.Close()
		ref, err := name.ParseReference(strings.TrimPrefix(reg.URL, "http://") + "/debian:12")
		if err != nil {
			b.Fatal(err)
		}
		img, err := mutate.AppendLayers(empty.Image, static.NewLayer(zipped.Bytes(), types.DockerLayer))
		if err != nil {
			b.Fatal(err)
		}
		if err := remote.Write(ref, img); err != nil {
			b.Fatal(err)
		}
		rpc := dsecv1connect.NewLayerServiceClient(srv.Client(), srv.URL)
		b.SetBytes(int64(len(tarred)))
		for b.Loop() {
			stream, err := rpc.ImportLayer(b.Context(), &dsecv1.ImportLayerRequest{Source: ref.Name(), Name: "debian"})
			if err != nil {
				b.Fatal(err)
			}
			for stream.Receive() {
			}
			if err := stream.Err(); err != nil {
				b.Fatal(err)
			}
			stream.Close()
			b.StopTimer()
			forget()
			b.StartTimer()
		}
	})
}
