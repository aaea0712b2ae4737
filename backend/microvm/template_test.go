package microvm

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTemplateFiles: any byte that changed is found; whether zeros are holes does not matter.
func TestTemplateFiles(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ram, state := make([]byte, size), []byte("state")
	ram[5], ram[700_000] = 1, 2
	if _, err := openTemplate(dir, size); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("nothing: %v", err)
	}
	write(ramName, ram)
	sum, err := digestRAM(filepath.Join(dir, ramName), size)
	if err != nil {
		t.Fatal(err)
	}
	st := sha256.Sum256(state)
	note, err := json.Marshal(&templateNote{Size: size, RAM: sum, State: st[:]})
	if err != nil {
		t.Fatal(err)
	}
	write(stateName, state)
	write(noteName, note)
	want := func(damage string) {
		t.Helper()
		_, err := openTemplate(dir, size)
		if damage == "" && err != nil || damage != "" && (err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), damage)) {
			t.Errorf("%v, want %q", err, damage)
		}
	}
	want("")
	if err := os.Remove(filepath.Join(dir, ramName)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, ramName)) // the same with holes
	if err != nil {
		t.Fatal(err)
	}
	_, err1 := f.WriteAt([]byte{1}, 5)
	_, err2 := f.WriteAt([]byte{2}, 700_000)
	if err := errors.Join(err1, err2, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	want("")
	for _, at := range []int{5, 6, 500_000, size - 1} {
		bad := bytes.Clone(ram)
		bad[at] ^= 4
		write(ramName, bad)
		want("its memory is another")
	}
	write(ramName, ram[:size-1])
	want("its memory is of 1048575 bytes")
	write(ramName, ram)
	write(stateName, []byte("State"))
	want("its state is another")
	write(noteName, note[:9])
	want("template")
}

// TestKey: a template is another's as soon as anything that it depends on is.
func TestKey(t *testing.T) {
	one := hardware{boot: bootImage{kernel: "/a/K", initrd: "/a/I"}, cpus: 1, memory: 256 << 20}
	seen := map[string]string{one.key("7.2"): "the first"}
	moved := one
	moved.boot.kernel, moved.layers, moved.disk = "/b/K", []layerFiles{{meta: "x", data: "y"}}, 7
	if seen[moved.key("7.2")] == "" {
		t.Error("where files lie, and what a sandbox asks for, changes the key")
	}
	for name, change := range map[string]func(*hardware){
		"kernel": func(h *hardware) { h.boot.kernel = "/a/L" }, "initrd": func(h *hardware) { h.boot.initrd = "/a/J" }, "kvm": func(h *hardware) { h.kvm = true },
		"cpus": func(h *hardware) { h.cpus = 2 }, "memory": func(h *hardware) { h.memory++; h.memory <<= 1 }, "clock": func(h *hardware) { h.tscKHz = 5 },
	} {
		h := one
		change(&h)
		k := h.key("7.2")
		if seen[k] != "" {
			t.Errorf("%s has the key of %s", name, seen[k])
		}
		seen[k] = name
	}
	if seen[one.key("7.3")] != "" {
		t.Error("the version of QEMU does not matter")
	}
}
