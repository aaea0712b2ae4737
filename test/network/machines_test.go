package network

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/datapath"
)

// onMachines are the cases that microVMs run too: what does not come down to the node alone, which knows no backends.
var onMachines = []string{"Allowed", "Shared", "Six", "Without", "Forged", "Ports", "Live", "Events", "Killed", "Checked"}

// TestMachines: microVMs are under the same network.
func TestMachines(t *testing.T) {
	if !slow {
		t.Skip("boots machines: DSEC_TEST_SLOW=1")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip(err)
	}
	w := start(t, datapath.EBPF, "microvm=on", "microvm-warm=1", testkit.KernelOpt())
	w.machines = true
	s := w.sites()
	for _, c := range cases {
		if slices.Contains(onMachines, c.name) {
			t.Run(c.name, func(t *testing.T) { c.test(t, w, s) })
		}
	}
}
