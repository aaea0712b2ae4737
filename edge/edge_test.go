package edge_test

import (
	"testing"

	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func fakeFactory() sandboxtest.Factory { return factoryOf(fake.Options{}) }

func factoryOf(opt fake.Options) sandboxtest.Factory {
	return sandboxtest.Factory{
		Backend: func(_ testing.TB, edge sandbox.EdgeID, _ string) sandbox.Backend {
			opt.Edge = edge
			return fake.New(opt)
		},
	}
}
