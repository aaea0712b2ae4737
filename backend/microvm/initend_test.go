package microvm_test

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/sandbox"
)

// TestInitEnds: however a machine came up, the end of its dsec-init is told as that, again and again.
func TestInitEnds(t *testing.T) {
	slow(t)
	f := warmFactory(t, 1, "")
	state, node := t.TempDir(), sandbox.NewEdgeID()
	sweepAtEnd(t, f, node, state)
	d := f.Backend(t, node, state)
	defer d.Close(context.Background())
	spec := &sandbox.Spec{Backend: sandbox.BackendMicroVM, Layers: []sandbox.LayerRef{{Digest: f.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 128 << 20, CPUMillis: 2000, Pids: 100, DiskBytes: 16 << 20, ShmBytes: 8 << 20}}
	rounds, err := strconv.Atoi(os.Getenv("DSEC_TEST_ROUNDS"))
	if err != nil {
		rounds = 5
	}
	for k := range rounds {
		inst, err := d.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.(*microvm.Driver).EndInit(inst.ID()); err != nil {
			t.Fatal(err)
		}
		<-inst.Done()
		if end := inst.End(); end == nil || end.Kind != sandbox.KindInitKilled {
			t.Errorf("round %d (%s): %+v", k, inst.(sandbox.Booter).Boot(), end)
		}
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
