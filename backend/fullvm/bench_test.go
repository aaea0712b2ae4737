package fullvm_test

import (
	"testing"

	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// machine starts a machine of the disk of one sector.
func machine(b *testing.B, n *sandboxtest.Node) sandbox.Instance {
	b.Helper()
	i, err := n.Backend.Create(b.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: n.Factory.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}})
	if err != nil {
		b.Fatal(err)
	}
	return i
}

// BenchmarkFirmware is a creation: QEMU, its firmware, to what is on the disk; and the end.
func BenchmarkFirmware(b *testing.B) {
	n := node(b, fullvmtest.Echo("x"), "")
	for b.Loop() {
		if err := machine(b, n).Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScreen is what is done to a screen: a picture of text of 720 by 400, a key that is taken, a click.
func BenchmarkScreen(b *testing.B) {
	n := node(b, fullvmtest.Echo("x"), "")
	i := machine(b, n)
	defer func() {
		if err := i.Destroy(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	s := i.(sandbox.Screen)
	for name, do := range map[string]func() error{
		"picture": func() error { _, _, _, err := s.Picture(b.Context()); return err },
		"key":     func() error { return s.Type(b.Context(), "a", 0) },
		"click":   func() error { return s.Click(b.Context(), "left", 1) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
