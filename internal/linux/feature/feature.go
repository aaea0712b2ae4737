package feature

import (
	"errors"
	"fmt"

	"github.com/opendsec/dsec/sandbox"
)

// Level says how much a missing feature matters.
type Level string

// The levels.
const (
	Required Level = "required" // the container backend does not run without it
	Wanted   Level = "wanted"   // something is weaker, slower or absent
	Later    Level = "later"    // for backends and features that are not built yet
)

// Feature is one ability of the host.
type Feature struct {
	Name  string
	Since string // kernel version, or the package that brings it
	Level Level
	Lost  string // what its absence costs
	// Probe returns nil when the host has it, else the reason. detail is shown when it has.
	Probe func() (detail string, err error)
}

// Result of a probe.
type Result struct {
	Name   string `json:"name"`
	Have   bool   `json:"have"`
	Level  Level  `json:"level"`
	Since  string `json:"since"`
	Detail string `json:"detail,omitempty"` // how it is there, or why it is not
	Lost   string `json:"lost,omitempty"`   // what that costs; only when it is missing

	Demanded bool `json:"demanded,omitempty"` // required by configuration
}

// Missing is the error of a feature that the host lacks; it wraps sandbox.ErrUnsupported.
type Missing struct {
	Feature string
	Since   string
	Err     error
}

func (m *Missing) Error() string {
	return fmt.Sprintf("this host lacks %s (%s): %v", m.Feature, m.Since, m.Err)
}

// Unwrap gives sandbox.ErrUnsupported and the reason.
func (m *Missing) Unwrap() []error { return []error{sandbox.ErrUnsupported, m.Err} }

// Probe tries all features.
func Probe() []Result {
	var out []Result
	for _, f := range All() {
		r := Result{Name: f.Name, Level: f.Level, Since: f.Since}
		detail, err := f.Probe()
		if r.Have, r.Detail = err == nil, detail; err != nil {
			r.Detail, r.Lost = err.Error(), f.Lost
		}
		out = append(out, r)
	}
	return out
}

// Have returns nil when the host has the feature of that name, else a *Missing.
func Have(name string) error {
	for _, f := range All() {
		if f.Name != name {
			continue
		}
		if _, err := f.Probe(); err != nil {
			return &Missing{f.Name, f.Since, err}
		}
		return nil
	}
	return &Missing{name, "", errors.New("unknown feature")}
}

// Check returns a *Missing for the first required feature that the host lacks.
func Check() error {
	for _, f := range All() {
		if f.Level != Required {
			continue
		}
		if _, err := f.Probe(); err != nil {
			return &Missing{f.Name, f.Since, err}
		}
	}
	return nil
}

var errAbsent = errors.New("not there")
