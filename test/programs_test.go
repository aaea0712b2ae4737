package test

import (
	"bytes"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// Scripts that show that what programs expect is there; each ends with 0 when it is.
var (
	//go:embed testdata/world.sh
	worldScript string
	//go:embed testdata/git.sh
	gitScript string
	//go:embed testdata/local.py
	localScript string
	//go:embed testdata/postgres.sh
	postgresScript string
	//go:embed testdata/redis.sh
	redisScript string
	//go:embed testdata/compile.sh
	compileScript string
	//go:embed testdata/pip.sh
	pipScript string
	//go:embed testdata/work.js
	nodeScript string
)

// roomy is enough for a database or a compiler.
func roomy(s *dsecv1.SandboxSpec) {
	s.Limits = &dsecv1.Limits{MemoryBytes: 1 << 30, CpuMillis: 2000, Pids: 512, DiskBytes: 1 << 30, ShmBytes: 64 << 20}
	s.Hostname = "worker.example"
}

// program runs a script as a user by the interpreter named, and fails the test with all its output unless it ends
// with 0.
func (n *node) program(t *testing.T, id, user, script string, interpreter ...string) {
	t.Helper()
	path := "/tmp/" + strings.ReplaceAll(t.Name(), "/", "-")
	n.upload(id, path, script)
	timeout := (10 * time.Minute).Seconds()
	r, err := n.Client.Commands.Exec(t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: append(interpreter, path), User: user, TimeoutSeconds: &timeout}})
	if err != nil {
		t.Fatal(err)
	}
	if res := r.GetCommand().GetResult(); res.GetEnd().GetKind() != "exited" || res.GetExitCode() != 0 {
		t.Errorf("%v\n%s\n%s", res, r.GetStdout(), r.GetStderr())
	}
}

// TestPrograms: the world of a sandbox is what ordinary programs expect, for root and for users.
func TestPrograms(t *testing.T) {
	n := startNode(t)
	id := n.create(1, roomy)[0]
	for _, user := range []string{"root", "games"} {
		t.Run(user, func(t *testing.T) {
			t.Run("World", func(t *testing.T) { n.program(t, id, user, worldScript, "bash", "-eu") })
			t.Run("Git", func(t *testing.T) { n.program(t, id, user, gitScript, "bash", "-eu") })
			t.Run("Local", func(t *testing.T) { n.program(t, id, user, localScript, "python3") })
		})
	}
}

// servicePackages are what TestServices' base holds.
var servicePackages = []string{"gcc", "libc6-dev", "git", "make", "nodejs", "postgresql", "procps", "python3",
	"python3-pip", "python3-setuptools", "python3-wheel", "redis-server", "sqlite3"}

// TestServices: database servers under users of their own, a compiler, pip and node, as Debian packs them.
func TestServices(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("the base of many packages takes minutes to make, once: set DSEC_TEST_SLOW=1, as make test-all does")
	}
	n := startNode(t)
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "hack", "debian-base.sh"), servicePackages...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	if code, _, stderr := n.cli(nil, "layer", "import", "--base", "services", strings.TrimSpace(string(out))); code != 0 {
		t.Fatal(stderr)
	}
	id := n.create(1, func(s *dsecv1.SandboxSpec) { roomy(s); s.Environment.Base = "services" })[0]
	t.Run("Postgres", func(t *testing.T) { n.program(t, id, "postgres", postgresScript, "bash", "-eu") })
	t.Run("Redis", func(t *testing.T) { n.program(t, id, "redis", redisScript, "bash", "-eu") })
	t.Run("Compile", func(t *testing.T) { n.program(t, id, "games", compileScript, "bash", "-eu") })
	t.Run("Pip", func(t *testing.T) { n.program(t, id, "root", pipScript, "bash", "-eu") })
	t.Run("Node", func(t *testing.T) { n.program(t, id, "games", nodeScript, "node") })
}
