package edge_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
)

// TestStrictJSON: a request in JSON that says what this edge does not understand is refused, and the word is named.
func TestStrictJSON(t *testing.T) {
	world := fake.New(fake.Options{Edge: "strc"})
	e, err := edge.New(edge.Config{ID: "strc", StateDir: t.TempDir(), MinFreeMemory: 1},
		map[sandbox.BackendName]sandbox.Backend{sandbox.BackendFake: world}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(e.Handler())
	defer srv.Close()
	defer func() { _ = e.Close(context.WithoutCancel(t.Context())) }()
	for body, want := range map[string]string{
		`{"sandboxId":"` + string(sandbox.NewID("strc")) + `"}`:                                  "not_found",
		`{"sandboxId":"` + string(sandbox.NewID("strc")) + `","command":{"shell":"x","tty":{}}}`: `"tty"`,
		`{"sandboxId":"` + string(sandbox.NewID("strc")) + `","comand":{"shell":"x"}}`:           `"comand"`,
	} {
		resp, err := http.Post(srv.URL+"/dsec.v1.CommandService/Exec", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		// The answer is JSON itself: its quotes are escaped.
		if err != nil || !strings.Contains(strings.ReplaceAll(string(b), `\"`, `"`), want) {
			t.Errorf("%s: %s, %v, want %s in it", body, b, err, want)
		}
	}
}
