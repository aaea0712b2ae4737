package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

// serveFlags are the flags of all roles; each uses its own.
type serveFlags struct {
	role, state, backend string
	opts                 []string

	engine, edges       []string // apiserver
	importer            string
	listen, portsListen string
	e2bListen           string
	e2bDomain           string
	listenFDs           bool
}

// role is one server role. run serves until ctx is done.
type role func(ctx context.Context, f *serveFlags, d stateDir, log *slog.Logger) error

var roles = map[string]role{
	"engine":    serveEngine,
	"blobd":     serveBlobd,
	"edge":      serveEdge,
	"apiserver": serveAPIServer,

	netproxyRole: serveNetproxy,
}

// roleWait is how long a role waits for its predecessor's end.
const roleWait = 20 * time.Second

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve --role ROLE",
		Short: "Run one server role in the foreground (`dsec up` runs all of them)",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			run := roles[f.role]
			if run == nil {
				return &exitError{2, fmt.Errorf("role %q: want engine, blobd, netproxy, edge or apiserver", f.role)}
			}
			d, err := openStateDir(f.state)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("role", f.role, "pid", os.Getpid())
			lock, err := waitLock(cmd.Context(), d.path("run", f.role+".lock"))
			if err != nil {
				return err
			}
			defer lock.Close()
			log.Info("starts", "version", buildVersion())
			if err := linux.SetTimerSlack(timerSlack); err != nil {
				log.Debug("timers stay exact", "err", err)
			}
			if err := run(cmd.Context(), &f, d, log); err != nil {
				log.Error("ends", "err", err)
				return err
			}
			log.Info("ends")
			return nil
		},
	}
	stateFlag(cmd, &f.state)
	fl := cmd.Flags()
	fl.StringVar(&f.role, "role", "", "engine, blobd, netproxy, edge or apiserver")
	fl.StringVar(&f.backend, "backend", "container", "edge: driver (container, fake)")
	fl.StringArrayVar(&f.opts, "opt", nil, "edge: `NAME=VALUE` for it or its driver (see dsec up)")
	fl.StringSliceVar(&f.engine, "engine", nil, "apiserver: `endpoints` of the engine (default: the state directory's)")
	fl.StringSliceVar(&f.edges, "edges", nil, "apiserver: `endpoints` of the edges (default: the state directory's)")
	fl.StringVar(&f.importer, "importer", "", "apiserver: `endpoint` of blobd (default: the state directory's)")
	fl.StringVar(&f.listen, "listen", defaultListen, "apiserver: `address` of the API")
	fl.StringVar(&f.portsListen, "ports-listen", defaultPortsListen, "apiserver: `address` of the ports' origin")
	fl.StringVar(&f.e2bListen, "e2b-listen", off, "apiserver: `address` of the door for E2B clients, or off")
	fl.StringVar(&f.e2bDomain, "e2b-domain", "", "apiserver: `domain` below which E2B clients find sandboxes' ports (default: localhost with the door's port)")
	fl.BoolVar(&f.listenFDs, "listen-fds", false, "apiserver: descriptors 3, 4 and (unless --e2b-listen is off) 5 are the listening sockets")
	return cmd
}

// timerSlack is how late timers of a server may be.
const timerSlack = 300 * time.Microsecond

// waitLock takes a role's lock, and waits for a predecessor that is ending.
func waitLock(ctx context.Context, path string) (*os.File, error) {
	deadline := time.Now().Add(roleWait)
	for {
		f, err := lockFile(path)
		var held *heldError
		if err == nil || !errors.As(err, &held) || time.Now().After(deadline) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// edgeOptions are what --opt may name for any driver; driverOptions those of one driver, and driverChecks what says
// whether their values can be meant.
var (
	edgeOptions   = []string{"min-free", "require", "network", "resolver", "services"}
	driverOptions = map[sandbox.BackendName][]string{}
	driverChecks  = map[sandbox.BackendName]func(opts map[string]string) error{}
)

// edgeOpts reads --opt NAME=VALUE of an edge with a driver, and refuses names that nothing would heed and values that
// cannot be meant. It starts and opens nothing.
func edgeOpts(pairs []string, driver string) (map[string]string, error) {
	opts, err := parsePairs("--opt", pairs, nil)
	if err != nil {
		return nil, err
	}
	known := slices.Sorted(slices.Values(append(slices.Clone(edgeOptions), driverOptions[sandbox.BackendName(driver)]...)))
	for name := range opts {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("--opt %s: %w: driver %s has %s", name, sandbox.ErrInvalid, driver, strings.Join(known, ", "))
		}
	}
	if _, err := minFree(opts); err != nil {
		return nil, err
	}
	if _, err := readStore(opts, "/"); err != nil {
		return nil, err
	}
	if _, _, err := networkConfig(opts); err != nil {
		return nil, err
	}
	if _, err := callConfig(opts); err != nil {
		return nil, err
	}
	if _, _, err := microvmConfig(opts); err != nil {
		return nil, err
	}
	if _, _, err := fullvmConfig(opts); err != nil {
		return nil, err
	}
	if _, err := savedLimit(opts); err != nil {
		return nil, err
	}
	if check := driverChecks[sandbox.BackendName(driver)]; check != nil {
		if err := check(opts); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// minFree reads --opt min-free, bytes; 0 = the edge's default.
func minFree(opts map[string]string) (int64, error) {
	v := opts["min-free"]
	if v == "" {
		return 0, nil
	}
	n, err := parseSize(v)
	if err != nil {
		return 0, fmt.Errorf("--opt min-free: %w: %w", sandbox.ErrInvalid, err)
	}
	total, err := linux.TotalMemory()
	if err != nil {
		return 0, err
	}
	if n <= 0 || n >= total {
		return 0, fmt.Errorf("--opt min-free=%s: %w: want more than nothing and less than the machine's memory, %s", v, sandbox.ErrInvalid, bytesText(total))
	}
	return n, nil
}

// listenUnix makes a role's socket, replacing one that a dead predecessor left. Its directory is root's alone. The umask
// is left as it is: it is the whole process's, and what others make or start meanwhile would get it too.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.Listen("unix", path)
	if err == nil {
		if err = os.Chmod(path, 0o600); err != nil {
			ln.Close()
			return nil, err
		}
	}
	if err != nil && strings.Contains(err.Error(), "invalid argument") {
		err = fmt.Errorf("%w (is the path longer than 107 bytes? use a shorter state directory)", err)
	}
	return ln, err
}

// serveUnix serves h on a role's socket until ctx is done.
func serveUnix(ctx context.Context, path string, h http.Handler, log *slog.Logger) error {
	ln, err := listenUnix(path)
	if err != nil {
		return err
	}
	return apiserver.Serve(ctx, ln, h, log)
}
