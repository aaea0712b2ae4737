package apiserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/cluster/apiserver"
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
