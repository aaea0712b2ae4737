package edge

import (
	"errors"
	"strings"
	"testing"

	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// A stack may be full; past that the error names the way out that there is.
func TestDepthOfForksAndPacks(t *testing.T) {
	for _, c := range []struct {
		layers, generations int
		pack                bool
		says                string // "" = it may
	}{
		{62, 1, false, ""}, {62, 2, false, "pack it"}, {62, 2, true, ""}, {63, 0, false, ""}, {63, 60, true, ""},
		{1, 63, false, "pack it"}, {1, 63, true, ""}, {64, 0, false, "collapse"}, {64, 0, true, "collapse"},
	} {
		err := checkDepth(&record.Created{Layers: make([]string, c.layers), Snapshots: make([]string, c.generations)}, c.pack)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
