package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Init returns a dsec-init: one built in dir, or, where there is no compiler, the one that DSEC_TEST_INIT names.
func Init(dir string) (string, error) {
	if bin := os.Getenv("DSEC_TEST_INIT"); bin != "" {
		return bin, nil
	}
	bin := filepath.Join(dir, "dsec-init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "github.com/opendsec/dsec/cmd/dsec-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build dsec-init: %w\n%s", err, out)
	}
	return bin, nil
}
