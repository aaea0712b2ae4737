package e2b

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/testkit"
)

// TestMicroVM: the packages on a machine with a kernel of its own, which the template's name asks for; what it cannot do it
// refuses.
func TestMicroVM(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots a machine: DSEC_TEST_SLOW=1")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("QEMU is missing")
	}
	n := startNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	py, err := testkit.PythonPackages(ctx, "e2b-py-2.63.0", "e2b==2.63.0")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, py, "testdata/microvm.py")
	cmd.Env = n.env()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if status, answer := n.control(t, "POST", "/v2/sandboxes", `{"templateID":"base+fullvm"}`); status != 400 || !strings.Contains(answer, "+microvm") {
		t.Errorf("a kind of machine that templates cannot ask for: %d %s", status, answer)
	}
}
