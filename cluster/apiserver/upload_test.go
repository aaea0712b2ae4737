package apiserver_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestRefusedUploadEndsItsConnection: the importer refuses an archive before it has read all of it. What is left of it must
// not be taken for the connection's next request.
func TestRefusedUploadEndsItsConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "b.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	importer := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
		fmt.Fprintln(w, `{"error":{"code":"invalid_argument","message":"no"}}`)
	})}
	go func() { _ = importer.Serve(ln) }()
	t.Cleanup(func() { importer.Close() })
	r := newRig(t)
	s, err := apiserver.New(apiserver.Options{Keys: r.keys, Catalogue: catalogue{}, Importer: "unix://" + socket, PortsURL: "http://127.0.0.1:7778", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s.Handler()}
	go func() { _ = srv.Serve(api) }()
	t.Cleanup(func() { srv.Close() })

	c, err := net.Dial("tcp", api.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "PUT /v1/layers?kind=base&name=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100000\r\n\r\n%s", r.key, strings.Repeat("x", 10))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), "invalid_argument") {
		t.Errorf("answer %q, %v", body, err)
	}
	if !resp.Close {
		t.Error("the connection stays open for another request")
	}
}

// TestRefusedUploadSaysWhy: who sends much of what is refused at its beginning hears why, each time, and not that the connection broke.
func TestRefusedUploadSaysWhy(t *testing.T) {
	dir, err := os.MkdirTemp("", "ru-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	store, err := posix.Open(filepath.Join(dir, "layers"), nil)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "b.sock")
	r := newRig(t)
	s, err := apiserver.New(apiserver.Options{Keys: r.keys, Catalogue: catalogue{}, Importer: "unix://" + socket, PortsURL: "http://127.0.0.1:7778", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	listen := func(network, at string, h http.Handler) string {
		ln, err := net.Listen(network, at)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: h}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(ln) // until it is closed
		}()
		t.Cleanup(func() { srv.Close(); <-done })
		return ln.Addr().String()
	}
	listen("unix", socket, importer.New(store, importer.Options{}))
	c, err := client.New(client.Options{Config: client.Config{URL: "http://" + listen("tcp", "127.0.0.1:0", s.Handler()), Key: r.key}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "../escape", Mode: 0o644}), w.WriteHeader(&tar.Header{Name: "rest", Mode: 0o644, Size: 1 << 30})); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		up := client.Upload{Kind: "workspace", Name: "w"}
		want := "escape"
		if n%2 == 1 {
			up.Kind, want = "nosuch", "nosuch"
		}
		body := io.MultiReader(bytes.NewReader(head.Bytes()), io.LimitReader(endless{}, 1<<30))
		_, err := c.UploadLayer(t.Context(), up, body, nil)
		sandboxtest.WantCode(t, err, connect.CodeInvalidArgument, want)
	}
	for _, digest := range []string{"", "../x", "a\x00b", "%s", "b3:" + strings.Repeat("A", 64)} { // would be part of a path at the importer's
		_, err := c.Layers.PutStep(ctxT(t), &dsecv1.PutStepRequest{Key: "aa", Layer: &dsecv1.Layer{Digest: digest}})
		sandboxtest.WantCode(t, err, connect.CodeInvalidArgument, "layer digest")
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
