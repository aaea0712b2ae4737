package edge

import (
	"errors"
	"testing"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// TestExcusable: a program that cannot be read for an I/O error is the store's fault, where the store had one.
func TestExcusable(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"an I/O error":     {errors.New("run /usr/bin/cat: input/output error"), true},
		"no program":       {&wire.Error{Code: wire.CodeNoProgram}, true},
		"the node is lost": {sandbox.NewFailure(sandbox.KindNodeLost, "gone"), false},
	} {
		if f, _ := startFailure(c.err); excusable(f) != c.want {
			t.Errorf("%s: %v (%s, %s)", name, !c.want, f.Kind, f.Blame)
		}
	}
}
