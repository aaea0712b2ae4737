package feature

import (
	"errors"
	"os"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestRequiredFeatures fails where a required feature is missing: the tests of the project need them all.
func TestRequiredFeatures(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, r := range Probe() {
		t.Logf("%-32s %-5v %-9s %s %s", r.Name, r.Have, r.Level, r.Detail, r.Lost)
		if r.Level == Required && !r.Have {
			t.Errorf("%s: %s", r.Name, r.Detail)
		}
		if !r.Have && (r.Detail == "" || r.Lost == "") {
			t.Errorf("%s: missing without a reason or a cost", r.Name)
		}
	}
}

func TestMissingIsUnsupported(t *testing.T) {
	err := error(&Missing{"X", "9.9", errAbsent})
	if !errors.Is(err, sandbox.ErrUnsupported) || !errors.Is(err, errAbsent) {
		t.Fatal(err)
	}
}
