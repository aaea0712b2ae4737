package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// A dsec-init that dies while it starts says why in the error of the creation.
func TestLastWordsOfStart(t *testing.T) {
	b := newBed(t, nil)
	path := filepath.Join(t.TempDir(), "filter")
	if err := os.WriteFile(path, []byte("odd"), 0o600); err != nil { // no array of instructions
		t.Fatal(err)
	}
	bad, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.d.filter != nil {
		b.d.filter.Close()
	}
	b.d.filter = bad // closed by the driver
	if _, err := b.d.prepare(t.Context(), false); err == nil || !strings.Contains(err.Error(), "dsec-init: start: ") {
		t.Fatalf("prepare = %v", err)
	}
	if left, err := os.ReadDir(b.d.shellsDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestLastWordsAreBounded(t *testing.T) {
	d := &Driver{shellsDir: t.TempDir()}
	id := sandbox.NewID(sandbox.NewEdgeID())
	if err := os.Mkdir(d.shellDir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if s := d.lastWords(id); s != "" {
		t.Errorf("without a file: %q", s)
	}
	f, err := d.makeWords(id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("first" + strings.Repeat("x\n", 5000) + "last\n"); err != nil {
		t.Fatal(err)
	}
	if s := d.lastWords(id); len(s) > 2*maxWords+10 || !strings.HasPrefix(s, "firstx x") || !strings.HasSuffix(s, "x last") {
		t.Errorf("%d bytes: %.20q", len(s), s)
	}
}
