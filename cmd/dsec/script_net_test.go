package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestNetworkScripts runs the verbs about networks against a node with the container driver, which lives in a network
// namespace of its own: one machine has one network for sandboxes. In scripts `dsec` is a program that enters it first.
func TestNetworkScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	guest := filepath.Join(filepath.Dir(binary), "dsec-init")
	build := exec.Command("go", "build", "-o", guest, "../dsec-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build dsec-init: %v\n%s", err, out)
	}
	for _, dir := range []string{"network", "fallback"} {
		t.Run(dir, func(t *testing.T) { networkScripts(t, dir) })
	}
}

func networkScripts(t *testing.T, dir string) {
	space := networktest.NewNamespace(t)
	enter := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/proc/%d/fd/%d %s \"$@\"\n", os.Getpid(), space.FD(), binary)
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "dsec"), []byte(enter), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("scripts", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: filepath.Join("testdata", "script", dir),
			Setup: func(env *testscript.Env) error {
				// On a real disk, as the files of layers want it, and a short path: sockets lie below it.
				work, err := os.MkdirTemp("/var/tmp", "ds-")
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(env.WorkDir, "echo.raw"), fullvmtest.Echo("x"), 0o600); err != nil {
					return err
				}
				env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
				env.Setenv("XDG_CONFIG_HOME", "")
				env.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
				env.Setenv("STATE", filepath.Join(work, "s"))
				env.Defer(func() { endNode(env.T(), env.Getenv("HOME"), work) })
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"up": cmdUp, "kill-role": cmdKillRole, "setid": cmdSetID},
		})
	})
}
