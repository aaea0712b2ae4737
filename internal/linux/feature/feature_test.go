package feature

import (
	"errors"
	"os"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
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

// TestKVMIsTried: the device alone is not the feature.
func TestKVMIsTried(t *testing.T) {
	err := Have("KVM")
	if _, serr := os.Stat("/dev/kvm"); serr != nil && err == nil {
		t.Error("no /dev/kvm, and yet KVM is there")
	}
	if err != nil && !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("not typed: %v", err)
	}
	if err == nil { // then guests run, and the probe says so
		if terr := linux.TryKVM(); terr != nil {
			t.Errorf("KVM is there, and yet: %v", terr)
		}
	}
}
