package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/cluster/supervisor"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// holdRole keeps descriptors that must outlive every other role; it is adopted, never replaced.
const holdRole = "hold"

// netproxyRole has the connections of sandboxes that are checked by name; it is adopted, so that they outlive a node
// whose sandboxes do.
const netproxyRole = "netproxy"

// servedRoles are the roles of `dsec serve`, in the order of their start.
var servedRoles = []string{"engine", "blobd", "edge", "apiserver"}

// allRoles are the served ones and netproxy, which ends after the edge.
var allRoles = append(slices.Clone(servedRoles), netproxyRole)

// nodeRoles is what `dsec up` runs. files are the listening sockets of the API, of the ports and, unless it
// is off, of E2B clients.
func nodeRoles(f *upFlags, d stateDir, files []*os.File) []supervisor.Role {
	out := []supervisor.Role{{Name: holdRole, Args: []string{"hold", "--socket", d.socket(holdRole)}, Adopt: func() *os.File { return runningHold(d) }}}
	if checksNames(f) {
		out = append(out, supervisor.Role{Name: netproxyRole, Args: []string{"serve", "--role", netproxyRole, "--state", string(d)},
			Adopt: func() *os.File { return lockedBy(d.path("run", netproxyRole+".lock")) }})
	}
	for _, name := range servedRoles {
		r := supervisor.Role{Name: name, Args: []string{"serve", "--role", name, "--state", string(d)}}
		switch name {
		case "apiserver":
			r.Args, r.Files = append(r.Args, "--listen-fds", "--e2b-listen", f.e2bListen, "--e2b-domain", f.e2bDomain), files
		case "edge", "blobd":
			r.Args = append(r.Args, "--backend", f.backend)
			for _, o := range f.opts {
				r.Args = append(r.Args, "--opt", o)
			}
		}
		out = append(out, r)
	}
	return out
}

// checksNames tells whether a node may have a network for sandboxes.
func checksNames(f *upFlags) bool {
	opts, err := parsePairs("--opt", f.opts, nil)
	return err == nil && f.backend == string(sandbox.BackendContainer) && opts["network"] != string(networkOff)
}

// lockedBy returns a pidfd of the process that has a lock, nil when none does.
func lockedBy(lock string) *os.File {
	pid := holder(lock)
	if pid == 0 {
		return nil
	}
	p, err := linux.OpenPID(pid)
	if err != nil {
		return nil
	}
	// Between reading the pid and opening it the number may have changed hands; the lock tells.
	if holder(lock) == pid {
		return p
	}
	p.Close()
	return nil
}

// runningHold returns a pidfd of the process that holds for this state directory, nil when none does: the one that has
// the lock; and one that only answers at the socket, of a version without the lock or with no room to write its pid.
func runningHold(d stateDir) *os.File {
	socket := d.socket(holdRole)
	if p := lockedBy(hold.LockPath(socket)); p != nil {
		return p
	}
	c, err := net.Dial("unixpacket", socket)
	if err != nil {
		return nil
	}
	defer c.Close()
	pid, err := linux.PeerPID(c.(*net.UnixConn))
	if err != nil {
		return nil
	}
	p, err := linux.OpenPID(pid)
	if err != nil {
		return nil
	}
	return p
}

// endStale ends roles that a killed `dsec up` left running: their successors take over what they did. The
// sandboxes and hold go on, and so do the connections that netproxy has, if it is not among the roles.
func endStale(ctx context.Context, d stateDir, log *slog.Logger, roles ...string) error {
	for _, name := range roles {
		path := d.path("run", name+".lock")
		for start := time.Now(); ; {
			pid := holder(path)
			if pid == 0 {
				break
			}
			sig := syscall.SIGTERM
			if time.Since(start) > roleGrace/2 {
				sig = syscall.SIGKILL
			}
			log.Info("ends a role that an earlier node left", "role", name, "pid", pid, "signal", sig.String())
			p, err := linux.OpenPID(pid)
			if err != nil {
				continue // it has ended meanwhile
			}
			// Between reading the pid and opening it the number may have changed hands; the lock tells.
			if holder(path) == pid {
				_ = linux.SignalPID(p, int(sig))
			}
			wait, cancel := context.WithTimeout(ctx, roleGrace/2)
			_ = linux.WaitPID(wait, p)
			cancel()
			p.Close()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if time.Since(start) > 2*roleGrace {
				return fmt.Errorf("role %s of an earlier node (process %d) does not end", name, pid)
			}
		}
	}
	return nil
}

// logTails shows the end of the log of every role that has trouble, or of all when none has.
func (d stateDir) logTails(roles []supervisor.Status) string {
	var b strings.Builder
	for _, troubled := range []bool{true, false} {
		for _, r := range roles {
			if troubled == (r.Restarts > 0) {
				if t := strings.TrimSpace(supervisor.Tail(d.path("log", r.Name+".log"), 1500)); t != "" {
					fmt.Fprintf(&b, "--- %s.log ---\n%s\n", r.Name, t)
				}
			}
		}
		if b.Len() > 0 {
			break
		}
	}
	return b.String()
}
