package fullvm_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots whole systems: DSEC_TEST_SLOW=1")
	}
}

// linuxDisk makes the disk of a small Linux.
func linuxDisk(t *testing.T) []byte {
	t.Helper()
	cache := filepath.Join(testkit.Cache(), "kernel")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := debkernel.Fetch(t.Context(), &debkernel.Options{Cache: cache})
	if err != nil {
		t.Fatalf("no kernel: %v", err)
	}
	out := filepath.Join(t.TempDir(), "disk.raw")
	if b, err := exec.Command("../../hack/fullvm-image.sh", r.Image(), out).CombinedOutput(); err != nil {
		t.Fatalf("make the disk: %v\n%s", err, b)
	}
	disk, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// TestLinux types commands into the shell of a Linux, and finds what they did on the serial port and on the screen.
func TestLinux(t *testing.T) {
	slow(t)
	n := node(t, linuxDisk(t), "")
	b := n.Create(t, &dsecv1.SandboxSpec{Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 2000, DiskBytes: 256 << 20}})
	var console string
	says := func(want string) {
		t.Helper()
		sandboxtest.Eventually(t, "the serial port says "+want, func() bool {
			more, err := n.Backend.(*fullvm.Driver).Console(t.Context(), sandbox.ID(b.ID))
			if err != nil {
				t.Fatal(err)
			}
			console += more
			return strings.Contains(console, want)
		})
	}
	says("system is up")
	awaitText(t, b, "#")
	before := shot(t, b)
	typeText(t, b, "echo typed: $((6 * 7)), $(uname -s) > /dev/ttyS0 && echo Shown\\ it\n")
	says("typed: 42, Linux")
	awaitText(t, b, "\nShown it")
	if bytes.Equal(before, shot(t, b)) {
		t.Error("the picture has not changed")
	}
	// A reboot is no end.
	console = ""
	typeText(t, b, "reboot -f\n")
	says("system is up")
	typeText(t, b, "poweroff -f\n")
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindInitKilled) || !strings.Contains(end.Evidence, "Power down") {
		t.Errorf("after it was switched off: %v", end)
	}
}

// TestUEFI starts a machine by UEFI, which shows its own shell when the disk has nothing for it.
func TestUEFI(t *testing.T) {
	slow(t)
	if _, err := os.Stat("/usr/share/OVMF/OVMF_CODE_4M.fd"); err != nil {
		t.Skip("ovmf is not installed")
	}
	n := node(t, fullvmtest.Empty(), "&firmware=uefi")
	b := n.Create(t, &dsecv1.SandboxSpec{Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 2000, DiskBytes: 4 << 20}})
	shot(t, b)
}
