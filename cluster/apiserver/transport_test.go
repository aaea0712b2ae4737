package apiserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestDirect follows connections to an edge: they are used again, found closed, and dropped with who gives up.
func TestDirect(t *testing.T) {
	hold, reached := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hold":
			close(reached)
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		default:
			_, _ = io.Copy(w, r.Body)
		}
	}))
	defer srv.Close()
	defer close(hold)
	addr := srv.Listener.Addr().String()
	var dialed atomic.Int32
	d := &direct{next: http.DefaultTransport, dial: func(ctx context.Context) (net.Conn, error) {
		dialed.Add(1)
		var nd net.Dialer
		return nd.DialContext(ctx, "tcp", addr)
	}}
	defer d.CloseIdleConnections()
	c := &http.Client{Transport: d}
	ask := func(ctx context.Context, path, body string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://local"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	for range 5 {
		if got, err := ask(t.Context(), "/echo", "hello"); err != nil || got != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n := dialed.Load(); n != 1 {
		t.Errorf("five requests in turn took %d connections, want 1", n)
	}
	srv.CloseClientConnections() // as an edge that is started again
	if got, err := ask(t.Context(), "/echo", "again"); err != nil || got != "again" {
		t.Fatalf("after the idle connection was closed: %q, %v", got, err)
	}
	if n := dialed.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	if _, err := ask(ctx, "/hold", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up: %v", err)
	}
	d.mu.Lock()
	idle := len(d.idle)
	d.mu.Unlock()
	if idle != 0 {
		t.Errorf("%d idle connections after one was given up, want none", idle)
	}
}
