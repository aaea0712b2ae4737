package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/microvm/kernel/kerneltest"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/rogpeppe/go-internal/testscript"
)

// binary is the real program, built once: its roles start it again by its path.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dsec-bin-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "dsec")
		if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build dsec: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// TestScripts runs each verb against a real node with the fake driver. In scripts `up` starts a node in
// $WORK/s; it is ended, and looked for, when the script ends.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// A short path: sockets lie below it.
			work, err := os.MkdirTemp("", "ds-")
			if err != nil {
				return err
			}
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
			env.Setenv("STATE", filepath.Join(work, "s"))
			env.Defer(func() { endNode(env.T(), env.Getenv("HOME"), work) })
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "apparmor":
				return feature.Have("AppArmor") == nil, nil
			case "default-node": // commands find it without being told
				_, err := os.Stat(filepath.Join(client.DefaultStateDir, "client.json"))
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"up":         cmdUp,
			"kill-role":  cmdKillRole,
			"setid":      cmdSetID,
			"background": cmdBackground,
			"echoes":     cmdEchoes,
			"silent":     cmdSilent,

			"built-kernel": cmdBuiltKernel,
		},
	})
}

// endNode ends what a script left, and fails when anything survives.
func endNode(t testscript.T, home, work string) {
	defer os.RemoveAll(work)
	state := filepath.Join(work, "s")
	if _, err := os.Stat(state); err != nil {
		return
	}
	down := exec.Command(binary, "down", "--state", state, "--force")
	down.Env = append(os.Environ(), "HOME="+home)
	if out, err := down.CombinedOutput(); err != nil {
		t.Log(fmt.Sprintf("down: %v\n%s", err, out))
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), state) {
			t.Log("left running: " + strings.ReplaceAll(string(b), "\x00", " "))
			t.FailNow()
		}
	}
}

// up starts a node: up [flags...]
func cmdUp(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("dsec", append([]string{"up", "--detach", "--state", ts.Getenv("STATE"), "--listen", "127.0.0.1:0",
		"--ports-listen", "127.0.0.1:0", "--backend", "fake"}, args...)...)
	if (err != nil) != neg {
		ts.Fatalf("up: %v", err)
	}
}

func readState(ts *testscript.TestScript) (s upState) {
	b, err := os.ReadFile(filepath.Join(ts.Getenv("STATE"), "run", "up.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	ts.Check(err)
	return s
}

// kill-role kills roles at once (up = the supervisor, last) and, unless that is among them, waits until each runs
// again: kill-role NAME...
func cmdKillRole(ts *testscript.TestScript, neg bool, names []string) {
	before := readState(ts)
	pids := map[string]int{"up": before.PID}
	for _, r := range before.Roles {
		pids[r.Name] = r.PID
	}
	for _, n := range names {
		if pids[n] == 0 {
			ts.Fatalf("role %s does not run", n)
		}
	}
	supervised := true
	for _, n := range names {
		ts.Check(syscall.Kill(pids[n], syscall.SIGKILL))
		supervised = supervised && n != "up"
	}
	deadline := time.Now().Add(30 * time.Second)
	for _, n := range names {
		for {
			if time.Now().After(deadline) {
				ts.Fatalf("role %s does not come back", n)
			}
			if !supervised {
				if syscall.Kill(pids[n], 0) != nil || zombie(pids[n]) {
					break
				}
			} else if running(readState(ts), n, pids[n]) {
				break
			}
			time.Sleep(5 * time.Millisecond) // poll, until the deadline
		}
	}
}

func running(s upState, name string, not int) bool {
	for _, r := range s.Roles {
		if r.Name == name {
			return r.PID != 0 && r.PID != not
		}
	}
	return false
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

// setid sets a variable to the last line of stdout: setid NAME
func cmdSetID(ts *testscript.TestScript, neg bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n")
	ts.Setenv(args[0], lines[len(lines)-1])
}

// built-kernel makes what looks like a kernel that this program has built into DSEC_CACHE: built-kernel VERSION
func cmdBuiltKernel(ts *testscript.TestScript, neg bool, args []string) {
	_, err := kerneltest.Put(ts.Getenv("DSEC_CACHE"), args[0], "gcc 12")
	ts.Check(err)
}

// silent takes connections, notes in a file that somebody asked, and never answers: silent ADDRESS FILE
func cmdSilent(ts *testscript.TestScript, neg bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	asked := ts.MkAbs(args[1])
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = os.WriteFile(asked, []byte("asked\n"), 0o600)
		<-r.Context().Done()
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // until it is closed
	}()
	ts.Defer(func() { srv.Close(); <-done })
	ts.Setenv(args[0], l.Addr().String())
}

// background starts a command, waits for its first line and sets a variable to it: background NAME COMMAND ARG...
// It is ended with the script.
func cmdBackground(ts *testscript.TestScript, neg bool, args []string) {
	c := exec.Command(binary, args[1:]...)
	c.Env = []string{"HOME=" + ts.Getenv("HOME"), "PATH=" + ts.Getenv("PATH")}
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	ts.Check(err)
	ts.Check(c.Start())
	ts.Defer(func() { _ = c.Process.Signal(syscall.SIGTERM); _ = c.Wait() })
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := out.Read(b); err != nil {
			_ = c.Wait()
			ts.Fatalf("%v ended: %s", args, &errs)
		}
		if b[0] == '\n' {
			break
		}
	}
	ts.Setenv(args[0], string(line))
}

// echoes sends to the address that its first word is, ends the sending direction, and wants it back:
// echoes ADDRESS ...
func cmdEchoes(ts *testscript.TestScript, neg bool, args []string) {
	addr, _, _ := strings.Cut(args[0], " ")
	c, err := net.Dial("tcp", addr)
	ts.Check(err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	sent := strings.Repeat("echo", 100_000)
	go func() {
		_, _ = io.WriteString(c, sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != sent {
		ts.Fatalf("what came back differs: %v", err)
	}
}
