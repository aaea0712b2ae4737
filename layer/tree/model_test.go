package tree

import (
	"fmt"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/erofs"
)

// Opaque directories that lie in each other cost as much as there are names, from whichever end they come.
func TestOpaqueIsLinear(t *testing.T) {
	const depth, wide = 1500, 4
	for name, order := range map[string]func(n int) int{
		"from the top":      func(n int) int { return n },
		"from the bottom":   func(n int) int { return depth - 1 - n },
		"the top each time": func(int) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(nil)
			for layer := range int32(2) {
				m.layer = layer
				for d := 1; d <= depth; d++ {
					parts := strings.Split(strings.Repeat("d/", d-1)+"d", "/")
					dir, err := m.lookup(m.root, parts, true)
					if err != nil {
						t.Fatal(err)
					}
					for n := range wide {
						m.put(dir, fmt.Sprintf("f%d-%d", layer, n), &erofs.Inode{Mode: erofs.TypeRegular | 0o644})
					}
				}
			}
			for n := range depth {
				dir, err := m.lookup(m.root, strings.Split(strings.Repeat("d/", order(n))+"d", "/"), false)
				if err != nil || dir == nil {
					t.Fatal(dir, err)
				}
				m.opaque(dir)
			}
			names := int64(0)
			for at := m.root; at != nil; at = at.children["d"] {
				for name := range at.children {
					names++
					if strings.HasPrefix(name, "f0") {
						t.Fatalf("%s is left in %.20s...", name, at.path())
					}
				}
			}
			if want := int64(depth * (1 + wide)); names != want {
				t.Errorf("%d names are left, want %d", names, want)
			}
			if limit := int64(2 * depth * (1 + 2*wide)); m.swept > limit {
				t.Errorf("%d names were looked at for %d that there are", m.swept, limit/2)
			}
		})
	}
}
