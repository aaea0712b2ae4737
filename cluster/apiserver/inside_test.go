package apiserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func askInside(t *testing.T, ctx context.Context, body io.Reader, h http.HandlerFunc) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api/x?q=1", body)
	if err != nil {
		t.Fatal(err)
	}
	return (&http.Client{Transport: &inside{h: h, log: slog.New(slog.DiscardHandler)}}).Do(r)
}

func TestInside(t *testing.T) {
	// Both bodies stream: the answer to the first half is there before the second is sent.
	pr, pw := io.Pipe()
	first := make(chan struct{})
	go func() {
		_, _ = io.WriteString(pw, "one")
		<-first
		_, _ = io.WriteString(pw, "two")
		pw.Close()
	}()
	resp, err := askInside(t, t.Context(), pr, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/x?q=1" || r.ContentLength >= 0 {
			t.Errorf("request: %s, length %d", r.RequestURI, r.ContentLength)
		}
		w.Header().Set("X-A", "b")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.Copy(w, r.Body)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "one" || resp.StatusCode != http.StatusAccepted || resp.Header.Get("X-A") != "b" {
		t.Fatalf("%q, %v, %d", b, err, resp.StatusCode)
	}
	close(first)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "two" {
		t.Fatalf("%q, %v", rest, err)
	}
}

func TestInsideCut(t *testing.T) {
	for name, p := range map[string]any{"aborted": http.ErrAbortHandler, "panicked": "trouble"} {
		resp, err := askInside(t, t.Context(), strings.NewReader("x"), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			panic(p)
		})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		resp.Body.Close()
	}
	resp, err := askInside(t, t.Context(), nil, func(http.ResponseWriter, *http.Request) { panic("before anything") })
	if err != nil || resp.StatusCode != http.StatusInternalServerError {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
}

func TestInsideGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	entered, left := make(chan struct{}), make(chan struct{})
	go func() {
		<-entered
		cancel()
	}()
	_, err := askInside(t, ctx, nil, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(left)
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-left // and RoundTrip waited for it
	// A reader that goes away ends the handler.
	resp, err := askInside(t, t.Context(), nil, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}
