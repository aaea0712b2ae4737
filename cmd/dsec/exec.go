package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newExec() *cobra.Command {
	var cf commandFlags
	var o overrides
	var detach bool
	cmd := &cobra.Command{
		Use:   "exec [flags] ID [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `Exec streams a command's output and exits with its exit code. 125 = the platform failed (the reason is on
stderr). Ctrl-C sends SIGINT to the command; a second one kills its whole tree.`,
		Example: `  dsec exec sabcd... -- ls -l /workspace
  dsec exec -u 1000 -w /workspace -c 'make test' sabcd...
  dsec exec -d sabcd... -- python -m http.server 8000`,
		Args: rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && strings.HasPrefix(args[1], "-") && args[1] != "--" {
				return &exitError{2, fmt.Errorf("%s: flags go before the id: dsec exec [flags] ID [--] COMMAND", args[1])}
			}
			spec, err := cf.spec(withoutDashes(args[1:]), "")
			if err == nil {
				err = o.apply(spec)
			}
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return infra(err)
			}
			defer c.Close()
			if detach {
				started, err := c.Start(cmd.Context(), args[0], spec)
				if err != nil {
					return infra(err)
				}
				if wantJSON(cmd) {
					return printProto(cmd.OutOrStdout(), started)
				}
				fmt.Fprintln(cmd.OutOrStdout(), started.GetId())
				return nil
			}
			io := newCollected(cmd)
			done, err := interruptible(cmd, c, args[0], spec, cf.interactive, cf.tty, io)
			if err != nil {
				return err
			}
			if err := io.print(done); err != nil {
				return err
			}
			return exitOf(cmd, done)
		},
	}
	cf.register(cmd)
	o.register(cmd)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "start the command in the background and print its id (dsec logs shows its output)")
	cmd.Flags().StringVar(&cf.session, "session", "", "run in the stateful shell session `ID` (see dsec session)")
	return cmd
}

// interruptible runs an attached command and passes the first interrupt on to it.
func interruptible(cmd *cobra.Command, c *client.Client, id string, spec *dsecv1.CommandSpec, interactive, tty bool, io *collected) (*dsecv1.Command, error) {
	user := cmd.Context()
	ctx, cancel := context.WithCancel(context.WithoutCancel(user))
	defer cancel()
	var mu sync.Mutex
	commandID := ""
	stop := context.AfterFunc(user, func() {
		mu.Lock()
		running := commandID
		mu.Unlock()
		if running == "" {
			cancel()
			return
		}
		call, done := context.WithTimeout(ctx, 10*time.Second)
		defer done()
		if _, err := c.Commands.SignalCommand(call, &dsecv1.SignalCommandRequest{SandboxId: id, CommandId: running, Signal: int32(syscall.SIGINT), Tree: true}); err != nil {
			cancel()
			return
		}
		killOnSecond(ctx, c, id, running, cancel)
	})
	defer stop()
	done, err := attached(ctx, c, client.Run{SandboxID: id, Spec: spec, Started: func(cmd *dsecv1.Command) {
		mu.Lock()
		commandID = cmd.GetId()
		mu.Unlock()
	}}, interactive, tty, io.passOut, io.passErr)
	if err != nil && user.Err() != nil && errors.Is(err, context.Canceled) {
		return nil, &exitError{code: 130}
	}
	return done, infra(err)
}
