package main

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/sandbox"
)

// The answers of a blobd that reads on demand, and of one that does not, are told apart.
func TestReadTrace(t *testing.T) {
	d := stateDir(t.TempDir())
	if _, err := readTrace(t.Context(), d, "b3:00"); err == nil || !strings.Contains(err.Error(), "--state") {
		t.Errorf("without a blobd: %v", err)
	}
	if err := os.Mkdir(d.path("run"), 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", d.socket("blobd"))
	if err != nil {
		t.Fatal(err)
	}
	absent := "b3:" + strings.Repeat("0", 64)
	plain := http.NewServeMux()
	plain.HandleFunc("GET /v1/lazy/layers/b3:01/trace", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"digest":"b3:01","dataBytes":8192,"readBytes":4096,"share":0.5,"chunks":[[0,1]]}`))
	})
	plain.Handle("GET /v1/lazy/layers/"+absent+"/trace", (&lazy.Server{}).Handler())
	srv := &http.Server{Handler: plain}
	go func() { _ = srv.Serve(ln) }() // until it is closed
	defer srv.Close()
	if got, err := readTrace(t.Context(), d, "b3:01"); err != nil || got.ReadBytes != 4096 || len(got.Chunks) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := readTrace(t.Context(), d, absent); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a layer that is not there: %v", err)
	}
	if _, err := readTrace(t.Context(), d, "b3:03"); err == nil || errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "lazy=on") {
		t.Errorf("a node that mounts directly: %v", err)
	}
	// What is no layer's fault names none.
	for _, dir := range []string{string(d), t.TempDir()} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		if err := printTraces(cmd, dir, []string{"b3:03"}); err == nil || strings.Contains(err.Error(), "b3:03") {
			t.Errorf("traces in %s: %v", dir, err)
		}
	}
}
