package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
)

// TestObjectIsOfItsSources fails when a source was changed and the object not built again (go generate).
func TestObjectIsOfItsSources(t *testing.T) {
	h := sha256.New()
	for _, glob := range []string{"bpf/*.h", "bpf/*.c"} {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatal(glob, err)
		}
		slices.Sort(files)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			h.Write(b)
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != strings.TrimSpace(string(sourceSum)) {
		t.Errorf("the sources have digest %s, the object was built from %s: run go generate", got, sourceSum)
	}
}

// TestLayouts compares sizes with those of the object.
func TestLayouts(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(objectReader())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]uintptr{
		"slots":     {4, unsafe.Sizeof(wireSlot{})},
		"states":    {4, stateWords * 8},
		"records":   {4, unsafe.Sizeof(wireRecord{})},
		"lists":     {4, unsafe.Sizeof(wireRules{})},
		"forbidden": {unsafe.Sizeof(wirePrefix{}), 4},
		"learned":   {unsafe.Sizeof(wireLearnedKey{}), unsafe.Sizeof(wireLearned{})},
		"flows":     {unsafe.Sizeof(wireFlowKey{}), unsafe.Sizeof(wireFlow{})},
		"current":   {4, 8},
	} {
		m := spec.Maps[name]
		if uintptr(m.KeySize) != want[0] || uintptr(m.ValueSize) != want[1] {
			t.Errorf("%s: %d and %d bytes, want %d and %d", name, m.KeySize, m.ValueSize, want[0], want[1])
		}
	}
	for _, m := range []string{"slots", "states", "current", "records", "spaces"} {
		if spec.Maps[m].MaxEntries != link.Slots {
			t.Errorf("%s has %d entries", m, spec.Maps[m].MaxEntries)
		}
	}
	if got := spec.Variables["config"].Size(); got != uint32(unsafe.Sizeof(wireConfig{})) {
		t.Errorf("config: %d bytes, want %d", got, unsafe.Sizeof(wireConfig{}))
	}
	if maxRules != network.MaxEntries {
		t.Error("a list of the kernel's holds other than what a program may have")
	}
}

// TestTableAgrees: what is written as a trie is what the entries mean, whatever the order.
func TestTableAgrees(t *testing.T) {
	p, err := network.Compile(network.Layer{Source: network.FromSpec, Policy: network.Policy{Mode: network.ModeOpen}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := makeTable(p.Static)
	if err != nil {
		t.Fatal(err)
	}
	turned := slices.Clone(p.Static)
	slices.Reverse(turned)
	b, err := makeTable(turned)
	if err != nil || a.digest() != b.digest() {
		t.Errorf("the order of entries matters: %v", err)
	}
	other, err := makeTable(p.Static[:len(p.Static)-1])
	if err != nil || a.digest() == other.digest() {
		t.Errorf("other entries have the same digest: %v", err)
	}
}
