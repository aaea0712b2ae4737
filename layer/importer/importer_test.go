package importer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/tree"
)

// service runs the importer on a Unix socket, as blobd does.
type service struct {
	t      *testing.T
	dir    string
	store  *posix.Store
	client *http.Client
	rpc    dsecv1connect.LayerServiceClient
}

func start(t *testing.T, o importer.Options) *service {
	t.Helper()
	return startIn(t, o, t.TempDir())
}

// startIn has its store in a folder.
func startIn(t *testing.T, o importer.Options, dir string) *service {
	t.Helper()
	s := &service{t: t, dir: dir}
	var err error
	if s.store, err = posix.Open(s.dir, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	o.MinFree = 1
	o.Registry = oci.RegistryOptions{Retry: time.Millisecond}
	sock := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: importer.New(s.store, o)}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sock)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
		<-done
		s.empty()
	})
	s.client = &http.Client{Transport: transport}
	s.rpc = dsecv1connect.NewLayerServiceClient(s.client, "http://blobd")
	return s
}

// empty waits until nothing is left in staging: a handler may still be clearing up when its client has gone.
func (s *service) empty() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := os.ReadDir(filepath.Join(s.dir, "staging"))
		if err != nil || len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Errorf("staging still holds %v", left)
			return
		}
	}
}

// pull imports and returns the last message, and the stages that were reported.
func (s *service) pull(ctx context.Context, r *dsecv1.ImportLayerRequest) (*dsecv1.ImportLayerResponse, map[string]*dsecv1.ImportProgress, error) {
	stream, err := s.rpc.ImportLayer(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer stream.Close()
	stages := map[string]*dsecv1.ImportProgress{}
	var last *dsecv1.ImportLayerResponse
	for stream.Receive() {
		last = stream.Msg()
		if p := last.GetProgress(); p != nil {
			stages[p.GetStage()] = p
		}
	}
	return last, stages, stream.Err()
}

// put uploads and returns the status and all lines.
func (s *service) put(query string, body io.Reader) (int, []*dsecv1.ImportLayerResponse) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, "http://blobd/v1/layers?"+query, body)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e dsecv1.ImportError
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			s.t.Fatal(err)
		}
		return resp.StatusCode, []*dsecv1.ImportLayerResponse{{Error: &e}}
	}
	var out []*dsecv1.ImportLayerResponse
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		m := &dsecv1.ImportLayerResponse{}
		if err := protojson.Unmarshal(sc.Bytes(), m); err != nil {
			s.t.Fatalf("%q: %v", sc.Bytes(), err)
		}
		out = append(out, m)
	}
	if len(out) == 0 {
		s.t.Fatal("an answer without lines")
	}
	return resp.StatusCode, out
}

func (s *service) mount(l *dsecv1.Layer) string {
	s.t.Helper()
	local, err := posix.NewNode(s.store).Local(s.t.Context(), layer.Digest(l.GetDigest()))
	if err != nil {
		s.t.Fatal(err)
	}
	return layertest.Mount(s.t, local.MetaPath, local.DataPath)
}

func randomImage(t *testing.T, size int64) v1.Image {
	t.Helper()
	img, err := random.Image(size, 3)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config.Env = "linux", "amd64", []string{"A=1"}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func registryHost(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

func TestPull(t *testing.T) {
	s := start(t, importer.Options{})
	host := registryHost(t, nil)
	push(t, host+"/team/app:1", randomImage(t, 1<<20))
	req := &dsecv1.ImportLayerRequest{Source: "docker://" + host + "/team/app:1"}
	last, stages, err := s.pull(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	l := last.GetLayer()
	if l.GetName() != "team/app:1" || l.GetKind() != dsecv1.LayerKind_LAYER_KIND_BASE || l.GetSource() != req.Source ||
		l.GetDataBytes() < 3<<20 || l.GetMetaBytes() == 0 || l.GetFiles() == 0 || l.GetConfig().GetEnv()[0] != "A=1" || last.GetReused() {
		t.Errorf("layer %v", last)
	}
	for _, name := range []string{"pull", "convert", "publish"} {
		if p := stages[name]; p.GetTotalBytes() == 0 || p.GetDoneBytes() != p.GetTotalBytes() {
			t.Errorf("stage %s ended at %v", name, p)
		}
	}
	s.mount(l)
	again, _, err := s.pull(t.Context(), req)
	if err != nil || !again.GetReused() || again.GetLayer().GetDigest() != l.GetDigest() {
		t.Errorf("the same image again: %v, %v", again, err)
	}
}

func TestPullRefused(t *testing.T) {
	s := start(t, importer.Options{})
	host := registryHost(t, nil)
	for source, want := range map[string]connect.Code{
		"": connect.CodeInvalidArgument, "file:///etc": connect.CodeInvalidArgument, "docker://" + host + "/none:1": connect.CodeNotFound,
	} {
		if _, _, err := s.pull(t.Context(), &dsecv1.ImportLayerRequest{Source: source}); connect.CodeOf(err) != want {
			t.Errorf("%q: %v", source, err)
		}
	}
	_, _, err := s.pull(t.Context(), &dsecv1.ImportLayerRequest{Source: "docker://" + host + "/x:1", Name: "UPPER"})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("bad name: %v", err)
	}
	if _, err := s.rpc.ListLayers(t.Context(), &dsecv1.ListLayersRequest{}); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("the catalogue's half: %v", err)
	}
}

// A canceled import ends and leaves nothing, although the registry never answers.
func TestPullCanceled(t *testing.T) {
	s := start(t, importer.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	hang := false
	host := registryHost(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if hang && strings.Contains(r.URL.Path, "/blobs/") {
				cancel()
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	push(t, host+"/app:1", randomImage(t, 1000))
	hang = true
	if _, _, err := s.pull(ctx, &dsecv1.ImportLayerRequest{Source: host + "/app:1"}); connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("got %v", err)
	}
}

func TestUploadTar(t *testing.T) {
	s := start(t, importer.Options{})
	data := layertest.Tar(t, layertest.Entry{Name: "src/main.py", Body: "print()"})
	code, lines := s.put("kind=workspace&name=proj&prefix=/workspace&source=here", bytes.NewReader(data))
	last := lines[len(lines)-1]
	l := last.GetLayer()
	if code != 200 || l.GetKind() != dsecv1.LayerKind_LAYER_KIND_WORKSPACE || l.GetName() != "proj" || l.GetSource() != "here" {
		t.Fatalf("%d, %v", code, last)
	}
	if b, err := os.ReadFile(filepath.Join(s.mount(l), "workspace/src/main.py")); err != nil || string(b) != "print()" {
		t.Errorf("%q, %v", b, err)
	}
	if _, lines = s.put("kind=workspace&name=proj&prefix=/workspace", bytes.NewReader(data)); !lines[len(lines)-1].GetReused() {
		t.Error("the same content again is not reused")
	}
}

func TestUploadImage(t *testing.T) {
	s := start(t, importer.Options{})
	img := randomImage(t, 100_000)
	tag, err := name.NewTag("x/y:1")
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(tag, img, &buf); err != nil {
		t.Fatal(err)
	}
	host := registryHost(t, nil)
	push(t, host+"/app:1", img)
	pulled, _, err := s.pull(t.Context(), &dsecv1.ImportLayerRequest{Source: host + "/app:1"})
	if err != nil {
		t.Fatal(err)
	}
	code, lines := s.put("kind=base&name=b&format=oci", &buf)
	if l := lines[len(lines)-1].GetLayer(); code != 200 || l.GetDigest() != pulled.GetLayer().GetDigest() {
		t.Errorf("%d, %v; the registry gave %s", code, lines[len(lines)-1], pulled.GetLayer().GetDigest())
	}
}

func TestUploadRefused(t *testing.T) {
	s := start(t, importer.Options{Limits: tree.Limits{Bytes: 1 << 20}})
	escape := layertest.Tar(t, layertest.Entry{Name: "../x"})
	big := layertest.Tar(t, layertest.Entry{Name: "big", Body: strings.Repeat("b", 2<<20)})
	for name, c := range map[string]struct {
		query string
		body  []byte
		want  string
	}{
		"kind":       {"kind=root&name=a", nil, "invalid_argument"},
		"no name":    {"kind=base", nil, "invalid_argument"},
		"bad name":   {"kind=base&name=" + url.QueryEscape("a b"), nil, "invalid_argument"},
		"format":     {"kind=base&name=a&format=zip", nil, "invalid_argument"},
		"prefix":     {"kind=base&name=a&prefix=../x", escape, "invalid_argument"},
		"escape":     {"kind=base&name=a", escape, "invalid_argument"},
		"empty":      {"kind=base&name=a", nil, "invalid_argument"},
		"proc link":  {"kind=workspace&name=a", layertest.Tar(t, layertest.Entry{Name: "proc", Link: "/etc"}), "invalid_argument"},
		"etc file":   {"kind=base&name=a", layertest.Tar(t, layertest.Entry{Name: "etc", Body: "x"}), "invalid_argument"},
		"dev prefix": {"kind=toolkit&name=a&prefix=/x", layertest.Tar(t, layertest.Entry{Name: "dev", Body: "x"}), ""},
		"too large":  {"kind=base&name=a", big, "resource_exhausted"},
		"no image":   {"kind=base&name=a&format=oci", escape, "invalid_argument"},
	} {
		_, lines := s.put(c.query, bytes.NewReader(c.body))
		if e := lines[len(lines)-1].GetError(); e.GetCode() != c.want {
			t.Errorf("%s: %v", name, lines[len(lines)-1])
		}
	}
}

// An upload that stands still is ended by the service, one that breaks off by the transport.
func TestUploadStalls(t *testing.T) {
	s := start(t, importer.Options{Stall: 50 * time.Millisecond})
	r, w := io.Pipe()
	defer w.Close()
	_, lines := s.put("kind=base&name=a", io.MultiReader(bytes.NewReader(layertest.Tar(t, layertest.Entry{Name: "f", Body: "x"})[:700]), r))
	if e := lines[len(lines)-1].GetError(); e.GetCode() != "deadline_exceeded" {
		t.Errorf("got %v", lines[len(lines)-1])
	}
}

func TestQueueIsBounded(t *testing.T) {
	s := start(t, importer.Options{Imports: 1, Queue: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Uploads whose bodies never come: one at work, one in the queue, the others refused.
	results := make(chan error, 5)
	var bodies []*io.PipeWriter
	for range cap(results) {
		r, w := io.Pipe()
		bodies = append(bodies, w)
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://blobd/v1/layers?name=a", r)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			resp, err := s.client.Do(req)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode != http.StatusTooManyRequests {
					err = errors.New(resp.Status)
				}
			}
			results <- err
		}()
	}
	for range cap(results) - 2 {
		if err := <-results; err != nil {
			t.Errorf("got %v", err)
		}
	}
	cancel()
	for _, w := range bodies { // the client waits for the body's reader
		w.CloseWithError(context.Canceled)
	}
	for range 2 {
		if err := <-results; err == nil {
			t.Error("a canceled upload succeeded")
		}
	}
}
