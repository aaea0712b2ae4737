package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// server is a real registry on loopback, with a wrapper that may misbehave.
func server(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func gzipLayer(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func zstdLayer(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(w.EncodeAll(data, nil), types.OCILayerZStd)
}

// image is three layers: gzip, zstd and plain; the upper ones remove and replace.
func image(t *testing.T, arch string) v1.Image {
	t.Helper()
	img := appendLayers(t, empty.Image,
		gzipLayer(t, layertest.Tar(t, layertest.Entry{Name: "usr/lib/a", Body: "1"}, layertest.Entry{Name: "lib", Link: "usr/lib"}, layertest.Entry{Name: "gone", Body: strings.Repeat("gone", 10_000)})),
		static.NewLayer(layertest.Tar(t, layertest.Entry{Name: "lib/b", Body: "2"}, layertest.Entry{Name: ".wh.gone"}), types.OCIUncompressedLayer),
		gzipLayer(t, layertest.Tar(t, layertest.Entry{Name: "usr/lib/a", Body: arch}, layertest.Entry{Name: "h", Link: "lib/b", Type: tar.TypeLink})),
	)
	return configure(t, img, arch)
}

func appendLayers(t *testing.T, img v1.Image, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func configure(t *testing.T, img v1.Image, arch string) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config = v1.Config{Env: []string{"PATH=/bin", "X=1"}, User: "nobody", WorkingDir: "/w", Entrypoint: []string{"/e"}, Cmd: []string{"c"}}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

var wantConfig = layer.Config{Env: []string{"PATH=/bin", "X=1"}, User: "nobody", Workdir: "/w", Entrypoint: []string{"/e"}, Cmd: []string{"c"}}

func push(t *testing.T, ref string, img v1.Image) string {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
	return "docker://" + ref
}

// flatten makes a layer of an image.
func flatten(t *testing.T, img *oci.Image) (*tree.Result, error) {
	t.Helper()
	b, err := tree.New(t.TempDir(), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := img.AddTo(t.Context(), b, t.TempDir(), func(string, int64, int64) {}); err != nil {
		return nil, err
	}
	return b.Finish(t.Context(), img.Config)
}

var quick = oci.RegistryOptions{Retry: time.Millisecond}

func pull(t *testing.T, source string) (*oci.Image, error) {
	t.Helper()
	return oci.Pull(t.Context(), source, quick)
}

// check flattens what image(t, "amd64") is, and looks at the tree.
func check(t *testing.T, img *oci.Image) layer.Digest {
	t.Helper()
	r, err := flatten(t, img)
	if err != nil {
		t.Fatal(err)
	}
	dir := layertest.Mount(t, r.MetaPath, r.DataPath)
	for path, want := range map[string]string{"usr/lib/a": "amd64", "usr/lib/b": "2", "lib/a": "amd64", "h": "2"} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a removed file: %v", err)
	}
	if _, d, _ := (&layer.Manifest{Version: 1, Meta: r.Manifest.Meta, Data: r.Manifest.Data, Files: r.Manifest.Files, Config: wantConfig}).Encode(); d != r.Digest {
		t.Errorf("configuration differs: %+v", r.Manifest.Config)
	}
	return r.Digest
}

func TestEverySourceGivesTheSameLayer(t *testing.T) {
	img := image(t, "amd64")
	host := server(t, nil)
	digests := map[string]layer.Digest{}

	source := push(t, host+"/team/app:1.0", img)
	for _, name := range []string{"registry", "registry again"} {
		got, err := pull(t, source)
		if err != nil {
			t.Fatal(err)
		}
		digests[name] = check(t, got)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	got, err := pull(t, "docker://"+host+"/team/app@"+d.String())
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != d.String() {
		t.Errorf("digest %s, want %s", got.Digest, d)
	}
	digests["by digest"] = check(t, got)

	// An index with several platforms and an attestation, as buildkit pushes it.
	idx := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: image(t, "arm64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: empty.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	ref, err := name.ParseReference(host + "/multi:latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, idx); err != nil {
		t.Fatal(err)
	}
	if got, err = pull(t, host+"/multi"); err != nil {
		t.Fatal(err)
	}
	digests["index"] = check(t, got)

	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	got, release, err := oci.OpenLayout(t.Context(), dir, oci.Platform{})
	if err != nil {
		t.Fatal(err)
	}
	digests["layout"] = check(t, got)
	if err := release(); err != nil {
		t.Fatal(err)
	}

	var entries []layertest.Entry
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		entries = append(entries, layertest.Entry{Name: "./" + strings.TrimPrefix(path, dir+"/"), Body: string(b)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	archive := layertest.Tar(t, entries...)
	if got, err = oci.OpenArchive(t.Context(), bytes.NewReader(archive), int64(len(archive)), oci.Platform{}); err != nil {
		t.Fatal(err)
	}
	digests["layout archive"] = check(t, got)

	for n, d := range digests {
		if d != digests["registry"] {
			t.Errorf("%s gives %s, the registry %s", n, d, digests["registry"])
		}
	}
}

func TestDockerSave(t *testing.T) {
	// Old archives hold plain layers, and link to equal ones.
	one := layertest.Tar(t, layertest.Entry{Name: "f", Body: "1"})
	img := configure(t, appendLayers(t, empty.Image, gzipLayer(t, one), gzipLayer(t, one)), "amd64")
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	archive := func(layer string) []byte {
		return layertest.Tar(t,
			layertest.Entry{Name: "c.json", Body: string(raw)},
			layertest.Entry{Name: "x/layer.tar", Body: layer},
			layertest.Entry{Name: "y/layer.tar", Link: "../x/layer.tar"},
			layertest.Entry{Name: "manifest.json", Body: `[{"Config":"c.json","Layers":["x/layer.tar","y/layer.tar"]}]`})
	}
	data := archive(string(one))
	got, err := oci.OpenArchive(t.Context(), bytes.NewReader(data), int64(len(data)), oci.Platform{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := flatten(t, got)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(layertest.Mount(t, r.MetaPath, r.DataPath), "f")); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
	data = archive(string(layertest.Tar(t, layertest.Entry{Name: "f", Body: "2"})))
	if got, err = oci.OpenArchive(t.Context(), bytes.NewReader(data), int64(len(data)), oci.Platform{}); err != nil {
		t.Fatal(err)
	}
	if _, err = flatten(t, got); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a layer with another digest: %v", err)
	}
}

func TestZstdLayer(t *testing.T) {
	img := configure(t, appendLayers(t, mutate.MediaType(empty.Image, types.OCIManifestSchema1), zstdLayer(t, layertest.Tar(t, layertest.Entry{Name: "f", Body: "zstd"}))), "amd64")
	got, err := pull(t, push(t, server(t, nil)+"/z:1", img))
	if err != nil {
		t.Fatal(err)
	}
	r, err := flatten(t, got)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(layertest.Mount(t, r.MetaPath, r.DataPath), "f")); err != nil || string(b) != "zstd" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestBadArchives(t *testing.T) {
	cases := map[string][]layertest.Entry{
		"neither":        {{Name: "f"}},
		"no such layer":  {{Name: "c.json", Body: `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("0", 64) + `"]}}`}, {Name: "manifest.json", Body: `[{"Config":"c.json","Layers":["x"]}]`}},
		"two images":     {{Name: "manifest.json", Body: `[{},{}]`}},
		"escape":         {{Name: "manifest.json", Body: `[{"Config":"../../../etc/passwd","Layers":[]}]`}},
		"circle":         {{Name: "a", Link: "b"}, {Name: "b", Link: "a"}, {Name: "manifest.json", Body: `[{"Config":"a","Layers":[]}]`}},
		"not JSON":       {{Name: "index.json", Body: `{`}},
		"empty index":    {{Name: "index.json", Body: `{"manifests":[]}`}},
		"bad digest":     {{Name: "index.json", Body: `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:../../x","size":1}]}`}},
		"missing blob":   {{Name: "index.json", Body: `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:` + strings.Repeat("0", 64) + `","size":1}]}`}},
		"other platform": {{Name: "c.json", Body: `{"os":"windows","architecture":"amd64"}`}, {Name: "manifest.json", Body: `[{"Config":"c.json","Layers":[]}]`}},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			data := layertest.Tar(t, entries...)
			img, err := oci.OpenArchive(t.Context(), bytes.NewReader(data), int64(len(data)), oci.Platform{})
			if err == nil {
				_, err = flatten(t, img)
			}
			if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrUnsupported) {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// A registry that fails for a while is asked again; one that goes on failing is reported for what it says.
func TestRegistryFaults(t *testing.T) {
	img := image(t, "amd64")
	status := func(code int) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(code) }
	}
	cut := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		panic(http.ErrAbortHandler)
	}
	flip := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		b := rec.Body.Bytes()
		b[len(b)/2] ^= 1
		_, _ = w.Write(b)
	}
	const forever = 1 << 30
	cases := map[string]struct {
		fault
		want error
	}{
		"500 twice":    {fault{2, status(500)}, nil},
		"503 for ever": {fault{forever, status(503)}, sandbox.ErrUnavailable},
		"429 for ever": {fault{forever, status(429)}, sandbox.ErrUnavailable},
		"401":          {fault{forever, status(401)}, sandbox.ErrPermission},
		"403":          {fault{forever, status(403)}, sandbox.ErrPermission},
		"404":          {fault{forever, status(404)}, sandbox.ErrNotFound},
		"cut twice":    {fault{2, cut}, nil},
		"cut for ever": {fault{forever, cut}, sandbox.ErrUnavailable},
		"flipped":      {fault{forever, flip}, sandbox.ErrInvalid},
	}
	for name, c := range cases {
		// From the start, and once manifest and configuration have been read.
		for _, late := range []bool{false, true} {
			testFault(t, fmt.Sprintf("%s late=%v", name, late), c.fault, c.want, img, late)
		}
	}
}

type fault struct {
	times int64 // how often; then it behaves
	do    func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

func testFault(t *testing.T, name string, f fault, want error, img v1.Image, late bool) {
	t.Run(name, func(t *testing.T) {
		var armed atomic.Bool
		var left atomic.Int64
		left.Store(f.times)
		host := server(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if armed.Load() && strings.Contains(r.URL.Path, "/blobs/") && left.Add(-1) >= 0 {
					f.do(w, r, next)
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		source := push(t, host+"/app:1", img)
		armed.Store(!late)
		got, err := pull(t, source)
		armed.Store(true)
		if err == nil {
			_, err = flatten(t, got)
		}
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		t.Log(err)
	})
}

func TestPullErrors(t *testing.T) {
	host := server(t, nil)
	if _, err := pull(t, "docker://"+host+"/none:1"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("unknown image: %v", err)
	}
	for _, s := range []string{"", "docker://", "docker://HOST/UPPER:x", "file:///etc/passwd", "http://" + host + "/x"} {
		if _, err := pull(t, s); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("source %q: %v", s, err)
		}
	}
	source := push(t, host+"/arm:1", image(t, "arm64"))
	if _, err := pull(t, source); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("another architecture: %v", err)
	}
	odd := appendLayers(t, empty.Image, static.NewLayer([]byte("x"), "application/vnd.wasm"))
	if _, err := pull(t, push(t, host+"/odd:1", configure(t, odd, "amd64"))); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("layer of an unknown type: %v", err)
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	if _, err := pull(t, strings.Replace(closed.URL, "http", "docker", 1)+"/x:1"); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := oci.Pull(ctx, source, quick); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestLogin(t *testing.T) {
	var armed atomic.Bool
	host := server(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, pass, _ := r.BasicAuth(); armed.Load() && (user != "u" || pass != "p") {
				w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	source := push(t, host+"/private:1", image(t, "amd64"))
	armed.Store(true)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if _, err := pull(t, source); !errors.Is(err, sandbox.ErrPermission) {
		t.Errorf("without a login: %v", err)
	}
	config := `{"auths":{"` + host + `":{"auth":"dTpw"}}}` // u:p
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := oci.Pull(t.Context(), source, oci.RegistryOptions{Keychain: authn.DefaultKeychain, Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	check(t, img)
}

func TestNames(t *testing.T) {
	for source, want := range map[string][2]string{
		"docker://python:3.12":                                     {"docker://index.docker.io/library/python:3.12", "python:3.12"},
		"docker://docker.io/library/python:latest":                 {"docker://index.docker.io/library/python:latest", "python"},
		"docker://registry.example:5000/team/app:v1":               {"docker://registry.example:5000/team/app:v1", "team/app:v1"},
		"docker://example.com/a@sha256:" + strings.Repeat("0", 64): {"docker://example.com/a@sha256:" + strings.Repeat("0", 64), "a"},
	} {
		c, err := oci.Canonical(source)
		n, nerr := oci.SuggestName(source)
		if err != nil || nerr != nil || c != want[0] || n != want[1] {
			t.Errorf("%s: %s, %s, %v, %v; want %v", source, c, n, err, nerr, want)
		}
	}
	for _, source := range []string{"", "A", "a b", "a\nb", "a\x1b[31m", strings.Repeat("A", 100_000), "http://x/y"} {
		_, err := oci.Canonical(source)
		if !errors.Is(err, sandbox.ErrInvalid) || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), "want docker://HOST/NAME:TAG") {
			t.Errorf("%.20q: %.500q", source, err)
		}
	}
}
