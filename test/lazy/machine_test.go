package lazy

import (
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
)

// TestMachines: microVMs read their layers on demand as well, those that boot with them and those that get them when they are
// claimed, although their QEMU is nobody.
func TestMachines(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots machines: DSEC_TEST_SLOW=1")
	}
	kernels, err := testkit.MachineKernel(t.Context())
	if err != nil {
		t.Fatalf("no kernel: %v", err)
	}
	n := start(t, "--opt", "microvm=on", "--opt", "microvm-warm=1", "--opt", "kernel="+kernels)
	for range 3 { // cold; what comes next, and later, by the pool
		boxes, err := n.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
			Environment: &dsecv1.Environment{Base: base}, Backend: dsecv1.Backend_BACKEND_MICROVM, CreateTimeoutSeconds: proto.Float64(600),
			Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 1000, Pids: 256, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if got := n.must(boxes[0].GetId(), "cat /etc/debian_version | cut -d. -f1; perl -e 'print 6*7'"); got != "12\n42" {
			t.Errorf("a machine says %q", got)
		}
	}
}
