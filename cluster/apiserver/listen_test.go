package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/cluster/apiserver"
)

// TestServe bounds headers, and cuts streams when it is asked to end.
func TestServe(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- apiserver.Serve(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stream" {
				_, _ = io.WriteString(w, "one")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		}), quiet)
	}()
	url := "http://" + ln.Addr().String()
	q, _ := http.NewRequest("GET", url, nil)
	q.Header.Set("X-Long", strings.Repeat("x", 200<<10))
	resp, err := http.DefaultClient.Do(q)
	if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Fatal(resp, err)
	}
	resp.Body.Close()

	resp, err = http.Get(url + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	cancel()
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("a cut stream ended cleanly after %q", rest)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error(fmt.Sprint("it still listens on ", ln.Addr()))
	}
}
