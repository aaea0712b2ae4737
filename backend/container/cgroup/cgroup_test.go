package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// newTree makes a tree of the test's own below its process's groups.
func newTree(t *testing.T) *Tree {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	l, err := Detect(fmt.Sprintf("cgrouptest-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Open(l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// spawn starts a program in a group of the v2 tree; it is ended with the test.
func spawn(t *testing.T, dir string, env string, args ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	g, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env)
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, out
}

// TestSandbox goes through the life of one sandbox's groups, with a process that is frozen and killed.
func TestSandbox(t *testing.T) {
	tree := newTree(t)
	t.Logf("%s below %s", tree.Mode(), tree.Dir())
	s := tree.Sandbox("one")
	if err := s.Make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill(); _ = s.WaitEmpty(10 * time.Second); _ = s.Remove() })
	if err := s.Divide(); err != nil {
		t.Fatal(err)
	}
	l := sandbox.Limits{MemoryBytes: 128 << 20, CPUMillis: 1500, Pids: 10, IOReadBPS: 100 << 20, IOWriteBPS: 100 << 20}
	if err := s.SetLimits(l); err != nil {
		t.Fatal(err)
	}
	st, err := s.Stats()
	if err != nil || st.MemoryLimitBytes != l.MemoryBytes || st.PidsLimit != l.Pids {
		t.Fatalf("statistics %+v, %v", st, err)
	}
	if tree.pure() {
		for file, want := range map[string]string{"cpu.max": "150000 100000\n", "memory.max": "134217728\n", "pids.max": "10\n", "memory.oom.group": "0\n"} {
			if b, err := os.ReadFile(s.dir + "/work/" + file); err != nil || string(b) != want {
				t.Errorf("%s: %q, %v, want %q", file, b, err, want)
			}
		}
		if b, err := os.ReadFile(s.dir + "/work/io.max"); err != nil || !strings.Contains(string(b), "rbps=104857600 wbps=104857600") {
			t.Errorf("io.max: %q, %v", b, err)
		}
	}
	c, err := s.MakeCommand("c1")
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := spawn(t, c.dir, "A=b", "sleep", "1000")
	if empty, err := c.Empty(); err != nil || empty {
		t.Fatalf("empty %v, %v", empty, err)
	}
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitFrozen(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.Thaw(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.OOMKills(); err != nil || n != 0 {
		t.Fatalf("memory kills %d, %v", n, err)
	}
	again, err := s.OpenCommand("c1")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Signal(int(syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenCommand("c1"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatalf("open a removed command: %v", err)
	}
	if names, err := tree.List(); err != nil || len(names) != 1 || names[0] != "one" {
		t.Fatalf("list %q, %v", names, err)
	}
	if err := s.WaitEmpty(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
}

// TestAllTogether: what all sandboxes may have leaves process ids to the node, and holds for each of them.
func TestAllTogether(t *testing.T) {
	tree := newTree(t)
	s := tree.Sandbox("one")
	if err := s.Make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill(); _ = s.WaitEmpty(10 * time.Second); _ = s.Remove() })
	if err := s.SetLimits(sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 100}); err != nil {
		t.Fatal(err)
	}
	all := tree.v2
	group := s.dir + "/work"
	if !tree.pure() {
		all = tree.v1["pids"]
		group = filepath.Dir(s.v1("pids", "pids.max"))
	}
	most, err := readInt(all + "/pids.max")
	machine, merr := readInt("/proc/sys/kernel/pid_max")
	if err != nil || merr != nil || most < 1 || most > machine-machine/5 {
		t.Fatalf("all sandboxes may have %d of %d process ids (%v, %v)", most, machine, err, merr)
	}
	// With room for two in all, a shell and its child, the grandchild is refused whatever the sandbox may have.
	if err := write(all+"/pids.max", "2"); err != nil {
		t.Fatal(err)
	}
	script := "echo $$ >" + group + "/cgroup.procs && (sleep 0; echo started); true"
	out, _ := exec.Command("sh", "-c", script).CombinedOutput()
	if !strings.Contains(strings.ToLower(string(out)), "fork") {
		t.Errorf("a process too many was started: %s", out)
	}
}

// TestRoom: on a pure v2 host a command is refused where the limit of processes is reached.
func TestRoom(t *testing.T) {
	tree := newTree(t)
	if !tree.pure() {
		t.Skip("hybrid host: the fork itself is refused")
	}
	s := tree.Sandbox("full")
	if err := s.Make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill(); _ = s.WaitEmpty(10 * time.Second); _ = s.Remove() })
	if err := s.SetLimits(sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 1}); err != nil {
		t.Fatal(err)
	}
	c, err := s.MakeCommand("c1")
	if err != nil {
		t.Fatal(err)
	}
	spawn(t, c.dir, "A=b", "sleep", "1000")
	if _, err := s.MakeCommand("c2"); !errors.Is(err, sandbox.ErrExhausted) {
		t.Fatalf("one command too many: %v", err)
	}
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
}

// TestMoveToLeaf starts processes in a group of their own, alone and with a stranger in it.
func TestMoveToLeaf(t *testing.T) {
	if os.Getenv("CGROUP_LEAF") != "" {
		l, err := Detect("tree")
		own, _ := os.ReadFile("/proc/self/cgroup")
		fmt.Printf("layout %s\nerror %v\ngroup %s", l.V2, err, own)
		os.Exit(0)
	}
	tree := newTree(t)
	if !tree.pure() {
		t.Skip("hybrid host: groups with processes may have children")
	}
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			dir := filepath.Join(tree.Dir(), "unit")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := waitEmpty(dir); err != nil {
					t.Error(err)
				}
			})
			want := []string{"layout " + dir + "/tree\n", "/unit/" + LeafName + "\n", "error <nil>\n"}
			if shared {
				cmd, _ := spawn(t, dir, "A=b", "sleep", "1000")
				defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
				h, err := readHost()
				if err != nil {
					t.Fatal(err)
				}
				want = []string{"layout " + h.v2 + "/tree\n", "/unit\n", "error <nil>\n"}
			}
			cmd, out := spawn(t, dir, "CGROUP_LEAF=1", "/proc/self/exe", "-test.run=^TestMoveToLeaf$")
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("want %q in\n%s", w, out)
				}
			}
		})
	}
}

// TestMovesAreFavoured looks for the hierarchy that keeps the lock awake; that it goes with the last tree is the kernel's part,
// which takes its time.
func TestMovesAreFavoured(t *testing.T) {
	tree := newTree(t)
	if err := linux.TryGroupMoves(); err != nil {
		if tree.moves != nil {
			t.Errorf("the kernel says %v and a hierarchy was made", err)
		}
		t.Skip("the kernel cannot: ", err)
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if tree.moves == nil || !strings.Contains(string(b), ":name="+hierarchy+":/\n") {
		t.Errorf("no hierarchy of our own in %q", b)
	}
}
