package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/opendsec/dsec/cluster/supervisor"
	"github.com/spf13/cobra"
)

// upDetached starts `dsec up` in a session of its own and returns once it answers.
func upDetached(cmd *cobra.Command, f *upFlags, d stateDir) error {
	if pid := holder(d.path("lock")); pid != 0 {
		if s, err := d.readUp(); err == nil && s.PID == pid && s.Ready {
			return fmt.Errorf("a node already runs on %s (process %d) at %s: see `dsec status`, end it with `dsec down%s`", d, pid, s.URL, stateHint(d))
		}
		return fmt.Errorf("a node already starts or ends on %s (process %d): see `dsec status`", d, pid)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	logPath := d.path("log", "up.log")
	logs, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer logs.Close()
	args := []string{"up", "--state", string(d), "--listen", f.listen, "--ports-listen", f.portsListen, "--e2b-listen", f.e2bListen, "--e2b-domain", f.e2bDomain, "--backend", f.backend, "--wait", f.wait.String()}
	if f.noUserConfig {
		args = append(args, "--no-user-config")
	}
	for _, o := range f.opts {
		args = append(args, "--opt", o)
	}
	child := exec.Command(exe, args...)
	child.Stdout, child.Stderr, child.Dir = logs, logs, "/"
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	deadline := time.After(f.wait + roleGrace)
	for {
		s, err := d.readUp()
		if err == nil && s.PID == child.Process.Pid && s.Ready {
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), s.report(d))
			}
			fmt.Fprint(cmd.OutOrStdout(), supervisor.Tail(logPath, 4096))
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the node ended (%v):\n%s", err, supervisor.Tail(logPath, 8192))
		case <-deadline:
			_ = child.Process.Signal(syscall.SIGTERM)
			return fmt.Errorf("the node does not answer after %s (it is being stopped):\n%s", f.wait, supervisor.Tail(logPath, 8192))
		case <-cmd.Context().Done():
			_ = child.Process.Signal(syscall.SIGTERM)
			<-ended
			return &exitError{code: 130}
		case <-time.After(10 * time.Millisecond):
		}
	}
}
