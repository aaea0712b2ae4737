package network

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// slow tests run too when DSEC_TEST_SLOW is set, as by make test-all.
var slow = os.Getenv("DSEC_TEST_SLOW") != ""

// binEnv names the directory of dsec and dsec-init, built once.
const binEnv = "DSEC_TEST_NETWORK_BIN"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dsec-bin-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		return networktest.Alone(func() error { return prepare(dir) }, m.Run)
	}())
}

// prepare makes what needs the machine's own network.
func prepare(dir string) error {
	for _, p := range []string{"dsec", "dsec-init"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, p), "github.com/opendsec/dsec/cmd/"+p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", p, err, out)
		}
	}
	if err := os.Setenv(binEnv, dir); err != nil {
		return err
	}
	if slow {
		if _, err := wideBase(); err != nil {
			return err
		}
	}
	node, err := nodeTools(context.Background())
	if err != nil {
		return err
	}
	if err := os.Setenv(toolsEnv, node); err != nil {
		return err
	}
	_, err = testkit.DebianBase(context.Background())
	return err
}
