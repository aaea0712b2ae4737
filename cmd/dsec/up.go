package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

type upFlags struct {
	state, listen, portsListen, backend, require string
	e2bListen, e2bDomain                         string
	opts                                         []string
	detach, noUserConfig                         bool
	wait                                         time.Duration
}

func newUp() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a node on this machine",
		Long: `Up runs all roles of a node, one process each, with their state in one directory, and starts again what dies.
In the foreground it ends with Ctrl-C (as ` + "`dsec down`" + ` does: sandboxes are stopped, then the roles). With --detach it
returns once the API answers.

On a state directory whose node was killed, it takes over the sandboxes that still run.

Options (--opt NAME=VALUE): min-free = memory that creations leave free (default: a sixteenth of the machine's, at most
1g), saved-space = what snapshots and paused sandboxes of microVMs and full VMs may take of the disk together (default: half of
what is free there at start); of containers: pool = size of the writable layers' pool, when it is made (like 8g), warm = shells kept ready, max =
sandboxes at once, parallel = shells being made at once, init = path of dsec-init; of their network (docs/network.md):
network = auto (where the host has what it needs and no other node has it), on (or the node does not serve), off, ebpf or
nftables (on, and by that), resolver = ADDRESS,... to ask for names, services = file of more services; of layers: store = folder or
s3://BUCKET/PREFIX?endpoint=URL&region=NAME that they lie in (default: a folder of the node's own; docs/stores.md), lazy =
on, off or auto: whether they are read on demand, cache = room for what was read (default 10g), store-timeout = how long a
reader waits for the store (default 30s), registry-timeout = for how long a registry may send nothing (default 1m); of function calls: fncall = base of all runtimes, or RUNTIME=BASE,... (default:
the base called fncall), fncall-parallel = calls that run at once; of microVMs (docs/microvm.md): kernel = own (built here),
debian or the directory of one (default: the own one where one was built, else Debian's; ` + "`dsec kernel ls`" + `).

--require makes layers of confinement a condition: a node that lacks one of them does not serve.`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("up needs root: namespaces with id ranges of their own, mounts and cgroups are made by it (try `sudo dsec up`)")
			}
			if drivers[sandbox.BackendName(f.backend)] == nil {
				return &exitError{2, fmt.Errorf("--backend %s: want container or fake", f.backend)}
			}
			opts, err := edgeOpts(f.opts, f.backend)
			if err != nil {
				return &exitError{2, err}
			}
			if err := presentKernel(opts["kernel"]); err != nil {
				return err
			}
			if err := absoluteOpts(f.opts); err != nil {
				return err
			}
			if f.require != "" {
				// As an option it reaches the edge, which refuses too: the machine may be another one by then.
				f.opts = append(f.opts, "require="+f.require)
			}
			if err := requireOpt(f.opts); err != nil {
				return err
			}
			if err := checkPlace(f.state, f.backend); err != nil {
				return err
			}
			d, err := openStateDir(f.state)
			if err != nil {
				return err
			}
			if f.detach {
				return upDetached(cmd, &f, d)
			}
			return upForeground(cmd, &f, d)
		},
	}
	stateFlag(cmd, &f.state)
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", defaultListen, "`address` of the API; port 0 = any free one")
	fl.StringVar(&f.portsListen, "ports-listen", defaultPortsListen, "`address` of the ports' own origin; port 0 = any free one")
	fl.StringVar(&f.e2bListen, "e2b-listen", "", "`address` of the door for E2B clients, or off (default: "+defaultE2BListen+" beside the default --listen, else any free port of its host)")
	fl.StringVar(&f.e2bDomain, "e2b-domain", "", "`domain` below which E2B clients find sandboxes' ports (default: localhost with the door's port)")
	fl.StringVar(&f.backend, "backend", "container", "driver of the edge: container, or fake (no real programs: scale tests)")
	fl.StringArrayVar(&f.opts, "opt", nil, "`NAME=VALUE` for the node; may be repeated (see above)")
	fl.StringVar(&f.require, "require", "", "`features` without which the node does not serve: "+strings.Join(feature.Words(), ", "))
	fl.BoolVarP(&f.detach, "detach", "d", false, "run in the background")
	fl.BoolVar(&f.noUserConfig, "no-user-config", false, "do not write ~/.config/dsec/client.json")
	fl.DurationVar(&f.wait, "wait", time.Minute, "how long the node may take to answer")
	return cmd
}

// absoluteOpts makes the paths in options absolute: the node works elsewhere.
func absoluteOpts(opts []string) error {
	for i, o := range opts {
		if name, path, _ := strings.Cut(o, "="); path != "" && (name == "init" || name == "services" || name == "store" && !strings.Contains(path, "://")) {
			abs, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			opts[i] = name + "=" + abs
		}
	}
	return nil
}

// requireOpt refuses to start a node on a machine that lacks what --require, or --opt require=LIST, names.
func requireOpt(pairs []string) error {
	opts, err := parsePairs("--opt", pairs, nil)
	if err != nil {
		return err
	}
	if err := feature.Require(opts["require"]); errors.Is(err, sandbox.ErrInvalid) {
		return &exitError{2, fmt.Errorf("--require: %w", err)}
	} else if err != nil {
		return fmt.Errorf("the node does not start: %w (see `dsec doctor`)", err)
	}
	return nil
}
