package supervisor_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/cluster/supervisor"
)

// The test binary is also the roles that it supervises.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		role(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func role(args []string) {
	switch args[0] {
	case "wait": // until SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("waits")
		<-c
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ignores")
		select {}
	case "parent": // leaves a grandchild behind that waits for its stdin's end
		r, w, err := os.Pipe()
		if err != nil {
			os.Exit(9)
		}
		c := exec.Command("/proc/self/exe", "role", "orphan")
		c.Stdin = r
		if err := c.Start(); err != nil {
			os.Exit(9)
		}
		fmt.Println("orphan", c.Process.Pid)
		_ = w
		select {}
	case "orphan":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "accept": // says its pid to each that connects to descriptor 3
		ln, err := net.FileListener(os.NewFile(3, ""))
		if err != nil {
			os.Exit(9)
		}
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, os.Getpid())
			c.Close()
		}
	}
}

// rig is one supervisor and its logs.
type rig struct {
	*supervisor.Supervisor
	t    *testing.T
	logs string
}

func newRig(t *testing.T) *rig {
	logs := t.TempDir()
	s, err := supervisor.New(supervisor.Options{Exe: "/proc/self/exe", LogDir: logs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &rig{s, t, logs}
}

// until polls a condition to a deadline.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not within 30 s: %+v", what, r.Status())
		}
	}
}

func (r *rig) log(name string) string {
	b, _ := os.ReadFile(filepath.Join(r.logs, name+".log"))
	return string(b)
}

func gone(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(b), ") Z ")
}

func TestRestarts(t *testing.T) {
	r := newRig(t)
	r.Start(supervisor.Role{Name: "a", Args: []string{"role", "wait"}})
	r.Start(supervisor.Role{Name: "b", Args: []string{"role", "wait"}})
	r.until("both run", func() bool { s := r.Status(); return s[0].PID != 0 && s[1].PID != 0 && r.log("a") != "" })
	first := r.Status()
	if err := syscall.Kill(first[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("a runs again", func() bool { s := r.Status()[0]; return s.PID != 0 && s.PID != first[0].PID })
	now := r.Status()
	if now[0].Restarts != 1 || !strings.Contains(now[0].LastEnd, "killed") || now[1].PID != first[1].PID {
		t.Errorf("status: %+v", now)
	}
	r.StopAll(10 * time.Second)
	for _, s := range r.Status() {
		if s.PID != 0 {
			t.Errorf("still there: %+v", s)
		}
	}
}

func TestStubbornIsKilled(t *testing.T) {
	r := newRig(t)
	r.Start(supervisor.Role{Name: "s", Args: []string{"role", "stubborn"}})
	r.until("it ignores", func() bool { return r.log("s") != "" })
	pid := r.Status()[0].PID
	r.StopAll(50 * time.Millisecond)
	if !gone(pid) || !strings.Contains(r.Status()[0].LastEnd, "killed") {
		t.Errorf("status: %+v", r.Status())
	}
}

// TestOrphans: what a killed role leaves behind becomes the supervisor's child, and is reaped when it ends.
func TestOrphans(t *testing.T) {
	r := newRig(t)
	r.Start(supervisor.Role{Name: "p", Args: []string{"role", "parent"}})
	r.until("it has a child", func() bool { return strings.Contains(r.log("p"), "\n") })
	var orphan int
	if _, err := fmt.Sscanf(r.log("p"), "orphan %d", &orphan); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.Status()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Its stdin ended with its parent, so that it ends too, and must not stay a zombie.
	r.until("the orphan is reaped", func() bool {
		_, err := os.Stat("/proc/" + strconv.Itoa(orphan))
		return err != nil
	})
	r.StopAll(time.Millisecond)
}

// TestAdopts: a process of an earlier supervisor is watched, shown as what it is, and replaced when it ends.
func TestAdopts(t *testing.T) {
	r := newRig(t)
	r.Start(supervisor.Role{Name: "old", Args: []string{"role", "wait"}})
	r.until("it runs", func() bool { return r.Status()[0].PID != 0 && r.log("old") != "" })
	old := r.Status()[0]
	pid := old.PID
	r.Leave("old")
	if len(r.Status()) != 0 {
		t.Fatalf("status: %+v", r.Status())
	}
	adopt := func() *os.File {
		p, err := openPID(pid)
		if err != nil { // it has ended
			return nil
		}
		return p
	}
	r.Start(supervisor.Role{Name: "new", Args: []string{"role", "wait"}, Adopt: adopt})
	r.until("it is adopted", func() bool { return !r.Status()[0].Since.IsZero() })
	if gone(pid) || r.log("new") != "" {
		t.Error("it was replaced")
	}
	// The kernel's clock has a hundredth of a second.
	if s := r.Status()[0]; s.PID != pid || s.Since.Sub(old.Since).Abs() > time.Second {
		t.Errorf("adopted: %+v, want process %d since %v", s, pid, old.Since)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("it is replaced", func() bool { return r.Status()[0].Restarts == 1 && r.log("new") != "" })
	r.StopAll(10 * time.Second)
}

// TestListenerOutlivesRole: connections made while a role is down wait for its successor.
func TestListenerOutlivesRole(t *testing.T) {
	r := newRig(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.Start(supervisor.Role{Name: "l", Args: []string{"role", "accept"}, Files: []*os.File{f}})
	ask := func() string {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		b, err := io.ReadAll(c)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	first := ask()
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(first)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("it is dead", func() bool { return gone(pid) })
	if second := ask(); second == first || second == "" {
		t.Errorf("answers %q, then %q", first, second)
	}
	r.StopAll(10 * time.Second)
}
