package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	netnode "github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

// sandboxGrace bounds the stopping of all sandboxes of a node.
const sandboxGrace = 5 * time.Minute

// downReport says what `dsec down` ended and removed.
type downReport struct {
	StoppedSandboxes []string `json:"stoppedSandboxes"`
	KeptSandboxes    bool     `json:"keptSandboxes"`
	StoppedRoles     []string `json:"stoppedRoles"`
	Removed          []string `json:"removed"`
	Problems         []string `json:"problems"`
}

func (r downReport) print(w io.Writer) {
	if r.KeptSandboxes {
		fmt.Fprintln(w, "sandboxes: kept (the next `dsec up` takes them over)")
	} else {
		fmt.Fprintf(w, "sandboxes: %d stopped\n", len(r.StoppedSandboxes))
	}
	fmt.Fprintf(w, "roles: %v stopped\n", r.StoppedRoles)
	fmt.Fprintf(w, "files: %d removed from run/; layers, keys and records stay\n", len(r.Removed))
	for _, p := range r.Problems {
		fmt.Fprintln(w, "problem: "+p)
	}
}

func newDown() *cobra.Command {
	var state string
	var keep, force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the node: stop all sandboxes, then its processes",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			abs, err := filepath.Abs(state)
			if err != nil {
				return err
			}
			r, err := down(cmd.Context(), stateDir(abs), keep, force)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				if err := printJSON(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			} else {
				r.print(cmd.OutOrStdout())
			}
			if len(r.Problems) > 0 {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	stateFlag(cmd, &state)
	cmd.Flags().BoolVar(&force, "force", false, "where the node was killed and does not come up again: end what is left of it, except sandboxes that run")
	cmd.Flags().BoolVar(&keep, "keep-sandboxes", false, "leave the sandboxes running; the next dsec up takes them over")
	return cmd
}

// down ends a node and waits until it is gone.
func down(ctx context.Context, d stateDir, keep, force bool) (r downReport, err error) {
	if _, err := os.Stat(string(d)); err != nil {
		return r, fmt.Errorf("no node's state is in %s: %w (--state names the directory)", d, err)
	}
	pid := holder(d.path("lock"))
	if pid == 0 {
		return downWithoutNode(ctx, d, keep, force)
	}
	p, err := linux.OpenPID(pid)
	if err != nil {
		return downWithoutNode(ctx, d, keep, force)
	}
	defer p.Close()
	_ = os.Remove(d.path("run", "down.json"))
	sig := syscall.SIGTERM
	if keep {
		sig = syscall.SIGUSR1
	}
	if err := linux.SignalPID(p, int(sig)); err != nil {
		return r, fmt.Errorf("signal node (process %d): %w", pid, err)
	}
	wait, cancel := context.WithTimeout(ctx, sandboxGrace+2*roleGrace)
	defer cancel()
	if err := linux.WaitPID(wait, p); err != nil {
		return r, fmt.Errorf("node (process %d) does not end: %w (see %s)", pid, err, d.path("log", "up.log"))
	}
	b, err := os.ReadFile(d.path("run", "down.json"))
	if err != nil { // it was killed, or had not come up
		return downWithoutNode(ctx, d, keep, force)
	}
	_ = os.Remove(d.path("run", "down.json"))
	return r, json.Unmarshal(b, &r)
}

// downWithoutNode ends what a killed `dsec up`, or one that kept its sandboxes, left. Sandboxes can only be stopped by a
// node that has taken them over: one is started for that.
func downWithoutNode(ctx context.Context, d stateDir, keep, force bool) (downReport, error) {
	_, err := d.readUp()
	if (err == nil || len(d.shells()) > 0) && !keep && !force {
		if err := takeOver(ctx, d); err != nil {
			return downReport{}, fmt.Errorf("the node has ended, and its successor, which would stop its sandboxes, does not start (--force leaves them): %w", err)
		}
		return down(ctx, d, false, true)
	}
	return endLeftovers(ctx, d, keep)
}

// shells are the ids of sandboxes, and of shells made ahead, that the node's containers have left: its driver removes
// the last when it closes, if no sandbox lives on.
func (d stateDir) shells() []string {
	ents, err := os.ReadDir(d.path("run", "shells"))
	if err != nil { // none, or the machine was started again
		return nil
	}
	ids := make([]string, len(ents))
	for i, e := range ents {
		ids[i] = e.Name()
	}
	return ids
}

// takeOver starts a node as the killed one was started.
func takeOver(ctx context.Context, d stateDir) error {
	old, err := d.readUp()
	if err != nil { // what it ran with is not known; that it ran containers is
		old = upState{Backend: string(sandbox.BackendContainer)}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"up", "--detach", "--state", string(d), "--backend", old.Backend, "--listen", "127.0.0.1:0", "--ports-listen", "127.0.0.1:0", "--no-user-config"}
	for _, o := range old.Opts {
		args = append(args, "--opt", o)
	}
	if out, err := exec.CommandContext(ctx, exe, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// endLeftovers ends roles without a node.
func endLeftovers(ctx context.Context, d stateDir, keep bool) (r downReport, err error) {
	lock, err := lockFile(d.path("lock"))
	if err != nil {
		return r, err
	}
	defer lock.Close()
	r.KeptSandboxes = keep
	roles := allRoles
	if keep {
		roles = servedRoles
	}
	r.StoppedRoles = slices.DeleteFunc(slices.Clone(roles), func(role string) bool { return holder(d.path("run", role+".lock")) == 0 })
	if err := endStale(ctx, d, slog.New(slog.DiscardHandler), roles...); err != nil {
		return r, err
	}
	if p := runningHold(d); p != nil && !keep {
		defer p.Close()
		_ = linux.SignalPID(p, int(syscall.SIGTERM))
		wait, cancel := context.WithTimeout(ctx, roleGrace)
		defer cancel()
		if err := linux.WaitPID(wait, p); err != nil {
			r.Problems = append(r.Problems, "hold does not end: "+err.Error())
		}
		r.StoppedRoles = append(r.StoppedRoles, holdRole)
	}
	if left := d.shells(); len(left) > 0 && !keep {
		r.Problems = append(r.Problems, fmt.Sprintf("%d sandboxes or shells are left: `dsec down%s` without --force ends them", len(left), stateHint(d)))
	}
	r.Removed = cleanRun(d, keep || len(r.Problems) > 0)
	return r, nil
}

// buildsDir is where contexts of builds are while they run.
func buildsDir(d stateDir) string { return d.path("run", "builds") }

// cleanRun removes what is of no use without the processes. While sandboxes live on, what holds their descriptors stays,
// and what tells how to start a node that takes them over.
func cleanRun(d stateDir, keepHold bool) []string {
	paths := []string{d.upSocket(), d.path("run", "engine.sock-peer")}
	for _, role := range servedRoles {
		paths = append(paths, d.socket(role), d.path("run", role+".lock"))
	}
	if !keepHold {
		paths = append(paths, d.path("run", "up.json"), d.socket(holdRole), hold.LockPath(d.socket(holdRole)),
			d.socket(netproxyRole), d.path("run", netproxyRole+".lock"),
			faultFile(d), faultFile(d)+".old")
	}
	removed := removeIfThere(paths...)
	if _, err := os.Stat(buildsDir(d)); err == nil && os.RemoveAll(buildsDir(d)) == nil { // contexts of builds that were cut off
		removed = append(removed, buildsDir(d))
	}
	if dir := networkDir(d); !keepHold {
		if _, err := os.Stat(dir); err == nil && netnode.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed
}
