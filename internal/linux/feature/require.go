package feature

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// requirable are the words by which a configuration may make a wanted feature a required one: those that change what
// a node promises, and that it makes use of today.
var requirable = map[string]string{
	"apparmor": "AppArmor",
	"psi":      "I/O pressure (PSI)",
	"seccomp":  "system-call filters",
}

// Words are what Named and Require take.
func Words() []string { return slices.Sorted(maps.Keys(requirable)) }

// Named returns the names of the features that a comma-separated list of words means. Error: sandbox.ErrInvalid.
func Named(list string) ([]string, error) {
	var names []string
	for w := range strings.SplitSeq(list, ",") {
		w = strings.ToLower(strings.TrimSpace(w))
		if w == "" {
			continue
		}
		name, ok := requirable[w]
		if !ok {
			return nil, fmt.Errorf("required feature %.40q: %w: want some of %s", w, sandbox.ErrInvalid, strings.Join(Words(), ", "))
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Require returns a *Missing for the first of the features in the list that the host lacks, nil when it has all.
func Require(list string) error {
	names, err := Named(list)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := Have(n); err != nil {
			return fmt.Errorf("%w; the configuration requires it", err)
		}
	}
	return nil
}

// Demand marks the named features in the results of Probe as required.
func Demand(results []Result, names []string) {
	for i := range results {
		if slices.Contains(names, results[i].Name) {
			results[i].Level = Required
			results[i].Demanded = true
		}
	}
}
