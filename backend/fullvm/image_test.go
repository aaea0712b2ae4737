package fullvm_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/store/posix"
)

// TestCutOff: a compressed disk that ends too early is called that.
func TestCutOff(t *testing.T) {
	store, err := posix.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(fullvmtest.Echo("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(importer.New(store, importer.Options{MinFree: 1}))
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL+"/v1/layers?format=disk&name=vm", bytes.NewReader(packed.Bytes()[:packed.Len()/2]))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "is cut off") || !strings.Contains(string(b), "invalid_argument") {
		t.Errorf("%s, %v", b, err)
	}
}
