package sandboxtest_test

import (
	"testing"

	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func fakeFactory() sandboxtest.Factory {
	return sandboxtest.Factory{
		Backend: func(_ testing.TB, edge sandbox.EdgeID, _ string) sandbox.Backend {
			return fake.New(fake.Options{Edge: edge})
		},
		KillInit: func(_ testing.TB, b sandbox.Backend, id sandbox.ID) { b.(*fake.Backend).Machine(id).Kill() },
	}
}

func TestFake(t *testing.T) { sandboxtest.Run(t, fakeFactory()) }
