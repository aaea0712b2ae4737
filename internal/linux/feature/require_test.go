package feature

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

func TestRequire(t *testing.T) {
	for _, word := range Words() { // each names a feature that is probed
		names, err := Named(word)
		if err != nil || len(names) != 1 || !slices.ContainsFunc(All(), func(f Feature) bool { return f.Name == names[0] }) {
			t.Errorf("%s: %v, %v", word, names, err)
			continue
		}
		if have := Have(names[0]); (Require(word) == nil) != (have == nil) {
			t.Errorf("%s: required: %v; had: %v", word, Require(word), have)
		}
	}
	if names, err := Named(" AppArmor, seccomp,apparmor,"); err != nil || !slices.Equal(names, []string{"AppArmor", "system-call filters"}) {
		t.Errorf("%v, %v", names, err)
	}
	// Landlock is probed and not applied to anything: requiring it would promise what nobody does.
	for _, word := range []string{"selinux", "landlock"} {
		if err := Require("seccomp," + word); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "apparmor") {
			t.Errorf("%s: %v", word, err)
		}
	}
	if err := Require(""); err != nil {
		t.Error(err)
	}
	results := []Result{{Name: "AppArmor", Level: Wanted}, {Name: "KVM", Level: Later}}
	Demand(results, []string{"AppArmor"})
	if results[0].Level != Required || !results[0].Demanded || results[1].Level != Later {
		t.Errorf("%+v", results)
	}
}
