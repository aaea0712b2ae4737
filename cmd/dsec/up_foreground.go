package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cluster/supervisor"
	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

// roleGrace is how long a role may take to end before it is killed.
const roleGrace = 10 * time.Second

// hopeless is the number of restarts before readiness that no patience mends.
const hopeless = 5

// node is a running `dsec up`.
type node struct {
	f    *upFlags
	d    stateDir
	log  *slog.Logger
	out  io.Writer
	json bool // what is printed is JSON
	sup  *supervisor.Supervisor

	// adopted: hold was there already, so that sandboxes of an earlier node may live.
	adopted bool

	mu     sync.Mutex
	state  upState
	giveUp context.CancelCauseFunc // ends the wait for readiness
}

func upForeground(cmd *cobra.Command, f *upFlags, d stateDir) (err error) {
	ctx := cmd.Context()
	lock, err := lockFile(d.path("lock"))
	var held *heldError
	if errors.As(err, &held) {
		return fmt.Errorf("a node already runs on %s (process %d): see `dsec status`, end it with `dsec down`", d, held.pid)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	n := &node{f: f, d: d, out: cmd.OutOrStdout(), json: wantJSON(cmd), log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))}
	keep := make(chan os.Signal, 1)
	signal.Notify(keep, syscall.SIGUSR1)
	defer signal.Stop(keep)

	old, _ := d.readUp()
	_ = os.Remove(d.path("run", "up.json"))
	stale := servedRoles
	if !checksNames(f) {
		stale = allRoles
	}
	if err := endStale(ctx, d, n.log, stale...); err != nil {
		return err
	}
	api, err := n.listen(f.listen, old.URL)
	if err != nil {
		return err
	}
	defer api.Close()
	ports, err := n.listen(f.portsListen, old.PortsURL)
	if err != nil {
		return err
	}
	defer ports.Close()
	door, err := n.listenE2B(old.E2BURL)
	if err != nil {
		return err
	}
	if door != nil {
		defer door.Close()
	}
	n.state = upState{PID: os.Getpid(), Started: time.Now(), Version: buildVersion(), Backend: f.backend, Opts: f.opts,
		URL: "http://" + api.Addr().String(), PortsURL: "http://" + ports.Addr().String(), E2BURL: e2bURL(door)}
	stopStatus, err := n.serveStatus()
	if err != nil {
		return err
	}
	defer stopStatus() // removes the socket
	if err := n.start(api, ports, door); err != nil {
		return err
	}
	cfg, err := n.ready(ctx)
	if err != nil {
		// Sandboxes of an earlier node stay: they are not to blame, and the next `dsec up` takes them over.
		n.stopRoles(n.adopted)
		cleanRun(d, n.adopted)
		if n.adopted && old.Backend != "" { // what they ran with, not what does not start
			_ = d.writeUp(old)
		}
		if ctx.Err() != nil {
			return &exitError{code: 130}
		}
		return err
	}
	n.printUsage(cfg)
	n.mu.Lock()
	n.state.Ready = true // --detach shows what was printed until now
	n.mu.Unlock()
	n.changed(nil)
	select {
	case <-ctx.Done():
		return n.down(false)
	case <-keep:
		return n.down(true)
	}
}

// listen listens on addr. When addr leaves the port open, the one of the node that ran here before is tried
// first, so that its clients find it again.
func (n *node) listen(addr, before string) (*net.TCPListener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: want HOST:PORT", addr)
	}
	if port == "0" && before != "" {
		if h, p, err := net.SplitHostPort(before[len("http://"):]); err == nil && h == host {
			if ln, err := net.Listen("tcp", net.JoinHostPort(h, p)); err == nil {
				return ln.(*net.TCPListener), nil
			}
		}
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w (another address: --listen, --ports-listen, --e2b-listen)", err)
	}
	return ln.(*net.TCPListener), nil
}

// start starts all roles.
func (n *node) start(listeners ...*net.TCPListener) error {
	if sandbox.BackendName(n.f.backend) == sandbox.BackendContainer {
		// All roles, so that sandboxes' control groups can be made beside them.
		if err := cgroup.MoveToLeaf(); err != nil {
			return err
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var files []*os.File
	for _, ln := range listeners {
		if ln == nil {
			continue
		}
		f, err := ln.File()
		if err != nil {
			return fmt.Errorf("share listening socket: %w", err)
		}
		files = append(files, f)
	}
	if n.sup, err = supervisor.New(supervisor.Options{Exe: exe, LogDir: n.d.path("log"), Log: n.log, Changed: n.changed}); err != nil {
		return err
	}
	if hold := runningHold(n.d); hold != nil {
		n.adopted = true
		hold.Close()
	}
	for _, r := range nodeRoles(n.f, n.d, files) {
		n.sup.Start(r)
	}
	return nil
}

// changed records what runs. The supervisor may call it from several roles at once.
func (n *node) changed([]supervisor.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.Roles = n.sup.Status() // in order: the argument may be older than what was written
	for _, r := range n.state.Roles {
		if !n.state.Ready && r.Restarts >= hopeless && n.giveUp != nil {
			n.giveUp(fmt.Errorf("role %s ends again and again: %s", r.Name, r.LastEnd))
		}
	}
	if err := n.d.writeUp(n.state); err != nil {
		n.log.Error("state of the node is not written", "err", err)
	}
}

// ready waits until the whole node answers, and makes the first key.
func (n *node) ready(ctx context.Context) (client.Config, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.f.wait, fmt.Errorf("no answer after %s", n.f.wait))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	n.mu.Lock()
	n.giveUp = giveUp
	n.mu.Unlock()
	key, err := firstKey(ctx, n.d)
	if err != nil {
		return client.Config{}, n.notReady(ctx, "the engine does not answer", err)
	}
	cfg := client.Config{URL: n.state.URL, Key: key}
	// At once: a key is shown only when it is made.
	if err := client.WriteConfig(n.d.path("client.json"), cfg); err != nil {
		return client.Config{}, err
	}
	if err := waitReady(ctx, cfg.URL); err != nil {
		return client.Config{}, n.notReady(ctx, "the node is not ready", err)
	}
	if !n.f.noUserConfig {
		path, err := client.UserConfigPath()
		if err == nil {
			err = client.WriteConfig(path, cfg)
		}
		if err != nil { // a service without HOME has none
			n.log.Warn("the user's client configuration is not written: set DSEC_URL and DSEC_API_KEY", "err", err)
		}
	}
	return cfg, nil
}

func (n *node) notReady(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return fmt.Errorf("%s: %w\n%s", what, err, n.d.logTails(n.sup.Status()))
}

// upReport is what `dsec up --json` prints. The key stays in the file.
type upReport struct {
	URL        string `json:"url"`
	PortsURL   string `json:"portsUrl"`
	E2BURL     string `json:"e2bUrl,omitempty"` // empty: there is no door for E2B clients
	ClientFile string `json:"clientFile"`       // URL and key, as DSEC_URL and DSEC_API_KEY would give them
	State      string `json:"state"`
	PID        int    `json:"pid"`
}

func (s upState) report(d stateDir) upReport {
	return upReport{URL: s.URL, PortsURL: s.PortsURL, E2BURL: s.E2BURL, ClientFile: d.path("client.json"), State: string(d), PID: s.PID}
}

func (n *node) printUsage(cfg client.Config) {
	if n.json {
		_ = printJSON(n.out, n.state.report(n.d))
		return
	}
	fmt.Fprintf(n.out, `dsec is up.
  API    %s
  ports  %s   (dsec forward --url)
  key    in %s (0600); more: dsec key create
Use it:
  dsec image import docker://REGISTRY/IMAGE:TAG --name NAME
  dsec run --base NAME -- COMMAND
Elsewhere: export DSEC_URL=%s DSEC_API_KEY=...
%sEnd it with: dsec down%s
`, cfg.URL, n.state.PortsURL, n.d.path("client.json"), cfg.URL, e2bUsage(n.state.E2BURL, n.f.e2bDomain), stateHint(n.d))
}

// stateHint is the flag that other verbs need for a state directory that is not the default.
func stateHint(d stateDir) string {
	if string(d) == client.DefaultStateDir || string(d) == os.Getenv("DSEC_STATE") {
		return ""
	}
	return " --state " + string(d)
}

// down stops the sandboxes (unless they are kept) and then the roles, and records what was removed.
func (n *node) down(keep bool) error {
	if !n.json {
		fmt.Fprintln(n.out, "dsec goes down")
	}
	r := downReport{KeptSandboxes: keep}
	if !keep {
		ctx, cancel := context.WithTimeout(context.Background(), sandboxGrace)
		r.StoppedSandboxes, r.Problems = stopAllSandboxes(ctx, n.d)
		cancel()
	}
	live := keep || len(r.Problems) > 0
	r.StoppedRoles = n.stopRoles(live)
	if left := n.d.shells(); len(left) > 0 && !live {
		live = true // their descriptors are gone with hold; the next down still sweeps them
		r.Problems = append(r.Problems, fmt.Sprintf("%d sandboxes or shells are left", len(left)))
	}
	if len(r.Problems) > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("what could not be stopped lives on: `dsec down%s` again, or `dsec up`, takes it over", stateHint(n.d)))
	}
	r.Removed = cleanRun(n.d, live)
	_ = n.d.writeJSON("down.json", r)
	if n.json {
		_ = printJSON(n.out, r)
	} else {
		r.print(n.out)
	}
	if len(r.Problems) > 0 {
		return &exitError{code: 1}
	}
	return nil
}

// stopRoles ends the roles in the reverse order of their start. While sandboxes live on, so does what holds
// their descriptors and their connections.
func (n *node) stopRoles(keep bool) (stopped []string) {
	if keep {
		n.sup.Leave(holdRole)
		n.sup.Leave(netproxyRole)
	}
	for _, s := range n.sup.Status() {
		stopped = append(stopped, s.Name)
	}
	n.sup.StopAll(roleGrace)
	n.sup.Close()
	return stopped
}
