package testkit

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/debkernel"
)

// KernelOpt is the --opt of a node under test by which its microVMs boot the kernel that MachineKernel is about, whatever else was
// built on this machine.
func KernelOpt() string { return "kernel=" + cmp.Or(os.Getenv("DSEC_TEST_KERNEL"), "debian") }

// MachineKernel is where the kernel of microVMs lies: Debian's, fetched if need be, or the one in DSEC_TEST_KERNEL, as
// `make kernel` prints it.
func MachineKernel(ctx context.Context) (string, error) {
	own := os.Getenv("DSEC_TEST_KERNEL")
	dir := cmp.Or(own, filepath.Join(Cache(), "kernel"))
	if own != "" {
		if _, err := debkernel.Find(&debkernel.Options{Cache: dir}); err != nil {
			return "", fmt.Errorf("DSEC_TEST_KERNEL=%s: %w", dir, err)
		}
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	_, err := debkernel.Fetch(ctx, &debkernel.Options{Cache: dir})
	return dir, err
}
