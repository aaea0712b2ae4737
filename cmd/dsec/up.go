package main

import (
	"fmt"
	"os"
	"time"

	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

type upFlags struct {
	state, listen, portsListen, backend string
	opts                                []string
	detach, noUserConfig                bool
	wait                                time.Duration
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
1g); of containers: pool = size of the writable layers' pool, when it is made (like 8g), warm = shells kept ready, max =
sandboxes at once, parallel = shells being made at once, init = path of dsec-init.`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("up needs root: namespaces with id ranges of their own, mounts and cgroups are made by it (try `sudo dsec up`)")
			}
			if drivers[sandbox.BackendName(f.backend)] == nil {
				return &exitError{2, fmt.Errorf("--backend %s: want container or fake", f.backend)}
			}
			if _, err := edgeOpts(f.opts, f.backend); err != nil {
				return &exitError{2, err}
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
	fl.StringVar(&f.backend, "backend", "container", "driver of the edge: container, or fake (no real programs: scale tests)")
	fl.StringArrayVar(&f.opts, "opt", nil, "`NAME=VALUE` for the node; may be repeated (see above)")
	fl.BoolVarP(&f.detach, "detach", "d", false, "run in the background")
	fl.BoolVar(&f.noUserConfig, "no-user-config", false, "do not write ~/.config/dsec/client.json")
	fl.DurationVar(&f.wait, "wait", time.Minute, "how long the node may take to answer")
	return cmd
}
