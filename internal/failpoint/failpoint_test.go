package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestHitFollowsItsSetting(t *testing.T) {
	defer func() { _ = Set("") }()
	if err := Hit("a"); err != nil {
		t.Fatalf("unset point: %v", err)
	}
	if err := Set("a=error@2, b=error"); err != nil {
		t.Fatal(err)
	}
	if err := Hit("a"); err != nil {
		t.Fatalf("first hit of a@2: %v", err)
	}
	if err := Hit("a"); !errors.Is(err, ErrInjected) {
		t.Fatalf("second hit of a@2: %v", err)
	}
	if err := Hit("b"); !errors.Is(err, ErrInjected) {
		t.Fatalf("b: %v", err)
	}
	if err := Hit("c"); err != nil {
		t.Fatalf("c: %v", err)
	}
}

func TestSetRefusesNonsense(t *testing.T) {
	for _, text := range []string{"a", "=kill", "a=explode", "a=error@0", "a=wait=long"} {
		if err := Set(text); err == nil {
			t.Errorf("Set(%q) succeeded", text)
		}
	}
}

func TestKillEndsTheProcess(t *testing.T) {
	if os.Getenv("FAILPOINT_CHILD") != "" {
		_ = Hit("here")
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestKillEndsTheProcess")
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1", EnvVar+"=here=kill")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("child ended with %v, want SIGKILL", err)
	}
}
