package main

import (
	"os"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newShell() *cobra.Command {
	var o overrides
	cmd := &cobra.Command{
		Use:   "shell ID",
		Short: "Open a shell in a sandbox",
		Long: `Shell opens the sandbox's own shell (bash, else sh) on this terminal. Without a terminal it runs what stdin
says:  echo 'make test' | dsec shell ID`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tty := isTerminal(os.Stdin) && isTerminal(os.Stdout) && !wantJSON(cmd)
			spec := &dsecv1.CommandSpec{Shell: plainShell, Tag: "shell"}
			if tty {
				spec.Shell = loginShell
			}
			if err := o.apply(spec); err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return infra(err)
			}
			defer c.Close()
			io := newCollected(cmd)
			done, err := interruptible(cmd, c, args[0], spec, true, tty, io)
			if err != nil {
				return err
			}
			if err := io.print(done); err != nil {
				return err
			}
			return exitOf(cmd, done)
		},
	}
	o.register(cmd)
	return cmd
}
