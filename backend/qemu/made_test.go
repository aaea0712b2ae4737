package qemu

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestMade: what was saved here fits, and what differs in one of the things that count is refused, with that.
func TestMade(t *testing.T) {
	dir := t.TempDir()
	type note struct {
		Made
		State []byte `json:"state_digest"`
	}
	here := MadeHere(3, "QEMU emulator version 7.2", false)
	path := filepath.Join(dir, "note.json")
	n := &note{}
	if err := ReadNote(path, n); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("no note: %v", err)
	}
	if err := WriteNote(path, &note{Made: here, State: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err := ReadNote(path, n); err != nil || string(n.State) != "x" {
		t.Fatalf("%+v, %v", n, err)
	}
	if err := n.Fits(here); err != nil {
		t.Errorf("what was saved here: %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(b), `{"version":3,"qemu":"QEMU emulator version 7.2","processor":"`) || !strings.HasSuffix(string(b), `","kvm":false,"state_digest":"eA=="}`) {
		t.Errorf("%s, %v", b, err)
	}
	for want, change := range map[string]func(*Made){
		"of version 4":                  func(m *Made) { m.Version = 4 },
		"version 8":                     func(m *Made) { m.QEMU = "QEMU emulator version 8" },
		"kvm=true":                      func(m *Made) { m.KVM = true },
		"another model of processor":    func(m *Made) { m.Processor = []byte{1} },
		"another model of processor: a": func(m *Made) { m.Processor = nil },
	} {
		m := here
		change(&m)
		if err := m.Fits(here); !errors.Is(err, sandbox.ErrFailedPrecondition) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	sum, err := FileDigest(path)
	if want := sha256.Sum256(b); err != nil || string(sum) != string(want[:]) {
		t.Errorf("digest: %x, %v", sum, err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, b[:len(b)/2], 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := ReadNote(path, n); !errors.Is(err, sandbox.ErrFailedPrecondition) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("half a note: %v", err)
	}
}
