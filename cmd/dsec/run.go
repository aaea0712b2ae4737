package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

// orphanIdle ends the sandbox of a `dsec run` that was killed before it could.
const orphanIdle = 300.0

// stopTimeout bounds the removal at the end of run.
const stopTimeout = 30 * time.Second

func newRun() *cobra.Command {
	var f specFlags
	var cf commandFlags
	var keep bool
	cmd := &cobra.Command{
		Use:   "run [flags] [--] [COMMAND [ARG...]]",
		Short: "Create a sandbox, run a command in it, remove it",
		Long: `Run creates a sandbox, streams a command's output, and exits with the command's exit code once the sandbox
is removed. Without a command it runs what the image says (its entrypoint and default arguments). 125 = the platform failed (the reason is on stderr), 126 and 127 as shells use them.`,
		Example: `  dsec run --base debian -- cat /etc/os-release
  dsec run --base python --workspace django -c 'python -m pytest -x'
  dsec run -it --base debian
  tar c . | dsec run -i --base debian -- tar t`,
		RunE: func(cmd *cobra.Command, args []string) error {
			fallback := ""
			if cf.tty {
				fallback = loginShell
			}
			command, err := cf.spec(args, fallback)
			asks := errors.Is(err, errNoCommand) && f.names() // the image may say what it runs
			if err != nil && !asks {
				return &exitError{2, err}
			}
			spec, err := f.spec(cmd)
			if err != nil {
				return &exitError{2, err}
			}
			if !keep && spec.IdleTimeoutSeconds == nil {
				idle := orphanIdle
				spec.IdleTimeoutSeconds = &idle
			}
			c, err := newClient()
			if err != nil {
				return infra(err)
			}
			defer c.Close()
			if asks {
				argv, err := imageCommand(cmd.Context(), c, spec.GetEnvironment())
				if err != nil {
					return infra(err)
				}
				if command, err = cf.spec(argv, ""); err != nil {
					return &exitError{2, err}
				}
			}
			return runOnce(cmd, c, spec, command, cf, keep)
		},
	}
	f.register(cmd)
	cf.register(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the sandbox and print its id on stderr")
	return cmd
}

// imageCommand is what the image says that it runs: its entrypoint, and its default arguments behind it.
func imageCommand(ctx context.Context, c *client.Client, env *dsecv1.Environment) ([]string, error) {
	resp, err := c.Environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: env, Paths: -1})
	if err != nil {
		return nil, err
	}
	return slices.Concat(resp.GetConfig().GetEntrypoint(), resp.GetConfig().GetCmd()), nil
}

func runOnce(cmd *cobra.Command, c *client.Client, spec *dsecv1.SandboxSpec, command *dsecv1.CommandSpec, cf commandFlags, keep bool) (err error) {
	ctx := cmd.Context()
	made, err := create(ctx, c, spec)
	if err != nil {
		return infra(err)
	}
	id := made.GetId()
	if keep {
		fmt.Fprintln(cmd.ErrOrStderr(), "dsec: sandbox "+id)
	} else {
		defer func() {
			// The user's Ctrl-C has ended ctx; the sandbox goes all the same.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			if _, serr := c.Sandboxes.StopSandbox(last, &dsecv1.StopSandboxRequest{SandboxId: id}); serr != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "dsec: sandbox %s could not be removed (it ends by itself when idle): %s\n", id, message(serr))
			}
		}()
	}
	io := newCollected(cmd)
	done, err := attached(ctx, c, client.Run{SandboxID: id, Spec: command}, cf.interactive, cf.tty, io.passOut, io.passErr)
	if ctx.Err() != nil {
		return &exitError{code: 130}
	}
	if err != nil {
		return infra(err)
	}
	if err := io.print(done); err != nil {
		return err
	}
	return exitOf(cmd, done)
}

// create creates one sandbox. When ctx ends meanwhile (Ctrl-C), the creation is awaited a moment longer, so that
// what it made can be removed.
func create(ctx context.Context, c *client.Client, spec *dsecv1.SandboxSpec) (*dsecv1.Sandbox, error) {
	req := &dsecv1.CreateSandboxRequest{Spec: spec, IdempotencyKey: client.NewOperationID()}
	made, err := c.Create(ctx, req)
	if ctx.Err() != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if made, err = c.Create(last, req); err == nil {
			_, err = c.Sandboxes.StopSandbox(last, &dsecv1.StopSandboxRequest{SandboxId: made[0].GetId()})
		}
		return nil, errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, err
	}
	return made[0], nil
}
