package main

import (
	"fmt"

	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/sandbox"
)

func init() {
	driverOptions[sandbox.BackendContainer] = append(driverOptions[sandbox.BackendContainer], "saved-space")
}

// savedLimit reads --opt saved-space: what machines of all kinds may save on this node together, bytes; 0 = the default.
func savedLimit(opts map[string]string) (int64, error) {
	v := opts["saved-space"]
	if v == "" {
		return 0, nil
	}
	n, err := parseSize(v)
	if err != nil {
		return 0, fmt.Errorf("--opt saved-space: %w: %w", sandbox.ErrInvalid, err)
	}
	if n <= 0 {
		return 0, fmt.Errorf("--opt saved-space=%s: %w: want more than nothing, like 20g", v, sandbox.ErrInvalid)
	}
	return n, nil
}

// openSaved bounds what the node's machines save, microVMs and full VMs, whether or not both are on.
func openSaved(opts map[string]string, d stateDir) (*saved.Space, error) {
	limit, err := savedLimit(opts)
	if err != nil {
		return nil, err
	}
	s, err := saved.Open(string(d), saved.Options{Limit: limit, Places: append(microvm.SavedPlaces(string(d)), fullvm.SavedPlaces(string(d))...)})
	if err != nil {
		return nil, fmt.Errorf("what machines have saved: %w", err)
	}
	return s, nil
}
