package main

import (
	"context"

	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/sandbox"
)

func init() { drivers[sandbox.BackendFake] = startFake }

// startFake makes the driver without real programs, for scale tests and tests of the other roles. Its machines
// end with the process.
func startFake(_ context.Context, c driverConfig) (sandbox.Backend, error) {
	return fake.New(fake.Options{Edge: c.edge}), nil
}
