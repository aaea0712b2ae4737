package s3_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/s3"
)

// counting stands before a service: it counts what is sent to it, and may cut it off.
type counting struct {
	*httptest.Server

	mu    sync.Mutex
	parts map[string]int // part numbers that the service took, how often
	puts  int            // other objects

	cut *cut // nil: it is not cut off
}

// cut lets so many parts through; who comes with another, once those are taken, is interrupted.
type cut struct {
	enough    int
	admitted  int
	full      chan struct{} // closed when enough parts are taken
	interrupt func()
}

// cutAfter cuts off who sends more than so many parts.
func (c *counting) cutAfter(parts int, interrupt func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = &cut{enough: parts, full: make(chan struct{}), interrupt: interrupt}
	if parts == 0 {
		close(c.cut.full)
	}
}

// goOn ends that, and tells how many parts were taken so far.
func (c *counting) goOn() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = nil
	return len(c.parts)
}

func newCounting(t *testing.T, endpoint string) *counting {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{parts: map[string]int{}}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // it is signed
	}, ModifyResponse: func(r *http.Response) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch n := r.Request.URL.Query().Get("partNumber"); {
		case r.Request.Method != http.MethodPut || r.StatusCode != http.StatusOK:
		case n != "":
			c.parts[n]++
			if c.cut != nil && len(c.parts) == c.cut.enough {
				close(c.cut.full)
			}
		default:
			c.puts++
		}
		return nil
	}, ErrorLog: log.New(io.Discard, "", 0)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := r.URL.Query().Get("partNumber")
		if r.Method != http.MethodPut {
			proxy.ServeHTTP(w, r)
			return
		}
		c.mu.Lock()
		cut := c.cut
		if n == "" || cut != nil && cut.admitted < cut.enough {
			if cut != nil && n != "" {
				cut.admitted++
			}
			cut = nil
		}
		c.mu.Unlock()
		if cut != nil {
			select {
			case <-cut.full:
			case <-r.Context().Done():
			}
			cut.interrupt()
			panic(http.ErrAbortHandler)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

// TestInterruptedUpload: an upload that was cut off after some parts sends the others when it is tried again; one that ended before
// its manifest sends nothing of its data again.
func TestInterruptedUpload(t *testing.T) {
	svc := service(t)
	front := newCounting(t, svc.Endpoint)
	st := open(t, s3.Config{Bucket: bucket, Endpoint: front.URL})
	s := layertest.NewSample(t, 1, 100<<20) // seven parts
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	front.cutAfter(4, cancel) // as if the importer was ended; a client that lives on would try again
	if err := put(ctx, st, s); err == nil {
		t.Fatal("it was not interrupted")
	}
	if list, err := st.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("published by halves: %v, %v", list, err)
	}
	before := front.goOn()

	// Another process: it knows nothing of the first.
	st = open(t, s3.Config{Bucket: bucket, Endpoint: front.URL})
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	again := 0
	for _, n := range front.parts {
		again += n - 1
	}
	if before != 4 || len(front.parts) != 7 || again != 0 {
		t.Errorf("parts before: %d, all and how often: %v", before, front.parts)
	}
	t.Logf("%d parts of 7 were sent before", before)
	if err := st.Verify(t.Context(), s.Digest); err != nil {
		t.Error(err)
	}
	wantNoUploads(t, svc.Dir)

	// Ended between the data and the manifest.
	if err := os.Remove(filepath.Join(svc.Dir, bucket, "layers", s.Digest.Hex(), "manifest.json")); err != nil {
		t.Fatal(err)
	}
	front.parts, front.puts = map[string]int{}, 0
	if err := put(t.Context(), st, s); err != nil {
		t.Fatal(err)
	}
	if len(front.parts) != 0 || front.puts != 2 { // metadata and manifest
		t.Errorf("sent again: parts %v, %d objects", front.parts, front.puts)
	}

	// One that nobody goes on with goes with its layer.
	other := layertest.NewSample(t, 2, 40<<20)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	front.cutAfter(0, cancel)
	if err := put(ctx, st, other); err == nil {
		t.Fatal("it was not interrupted")
	}
	front.goOn()
	if err := put(t.Context(), st, other); err != nil {
		t.Fatal(err)
	}
	for _, d := range []layer.Digest{s.Digest, other.Digest} {
		if err := st.Delete(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
	if list, err := st.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after deletion: %v, %v", list, err)
	}
	wantNoUploads(t, svc.Dir)
}

// wantNoUploads looks at the service's own folder: no file of a layer, whole or in parts, is left but those that are published.
func wantNoUploads(t *testing.T, dir string) {
	t.Helper()
	uploads, err := filepath.Glob(filepath.Join(dir, bucket, ".sgwtmp", "multipart", "*", "*"))
	if err != nil || len(uploads) > 0 {
		t.Errorf("interrupted uploads are left: %v, %v", uploads, err)
	}
}
