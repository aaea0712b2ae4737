package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func tarOf(t testing.TB, headers ...*tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		body := h.Uname // the content travels in a field that is not used otherwise
		h.Uname, h.Size = "", 0
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, body)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func (s *suite) archives(t *testing.T) {
	b := s.Create(t, nil)
	t.Run("UpAndDown", func(t *testing.T) {
		up := tarOf(t,
			&tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o755},
			&tar.Header{Name: "sub/one", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "first"},
			&tar.Header{Name: "deep/er/two", Typeflag: tar.TypeReg, Mode: 0o755, Uname: strings.Repeat("second", 50000)},
		)
		if status, answer := b.Do("PUT", "archive?path=/tmp/up", up); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, answer)
		}
		b.WantShell("cat /tmp/up/sub/one", "first")
		status, answer := b.Do("GET", "archive?path=/tmp/up", nil)
		if status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		got := map[string]string{}
		r := tar.NewReader(strings.NewReader(answer))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				data, _ := io.ReadAll(r)
				got[strings.TrimPrefix(h.Name, "./")] = string(data)
			}
		}
		if len(got) != 2 || got["sub/one"] != "first" || len(got["deep/er/two"]) != 300000 {
			t.Errorf("files %d: %.200v", len(got), got)
		}
	})
	t.Run("Escapes", func(t *testing.T) {
		for _, h := range []*tar.Header{
			{Name: "../escaped", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"},
			{Name: "a/../../escaped", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"},
		} {
			name := h.Name
			b.Do("PUT", "archive?path=/tmp/jail", tarOf(t, h))
			if status, _ := b.Do("GET", "files?path=/tmp/escaped", nil); status != 404 {
				t.Errorf("%s left the directory", name)
			}
		}
	})
	t.Run("EscapesByLink", func(t *testing.T) {
		s.real(t)
		b.Do("PUT", "archive?path=/tmp/jail2", tarOf(t,
			&tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/tmp/outside"},
			&tar.Header{Name: "out/escaped", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "x"}))
		b.WantShell("ls /tmp/outside 2>/dev/null; echo none", "none\n")
	})
	t.Run("NotATar", func(t *testing.T) {
		if status, _ := b.Do("PUT", "archive?path=/tmp/junk", strings.NewReader(strings.Repeat("junk", 1000))); status < 400 {
			t.Errorf("junk was accepted: %d", status)
		}
	})
	t.Run("Missing", func(t *testing.T) {
		if status, answer := b.Do("GET", "archive?path=/tmp/none", nil); status != 404 {
			t.Errorf("%d %s", status, answer)
		}
	})
}
