package main

import (
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newSession() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Open, list and close stateful shell sessions",
		Long: `In a session, what a command changes in the shell persists: cd, export, functions. Commands run in it by
dsec exec --session, one after the other.`,
	}
	cmd.AddCommand(newSessionOpen(), newSessionLs(), newSessionClose())
	return cmd
}

func newSessionOpen() *cobra.Command {
	var o overrides
	cmd := &cobra.Command{
		Use:   "open [flags] ID [SESSION]",
		Short: "Open a session in a sandbox and print its id",
		Example: `  dsec session open sabcd... main
  dsec exec --session main -c 'cd /workspace; export DEBUG=1' sabcd...
  dsec exec --session main -c 'make test' sabcd...`,
		Args: rangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var spec dsecv1.CommandSpec
			if err := o.apply(&spec); err != nil {
				return &exitError{2, err}
			}
			req := &dsecv1.CreateSessionRequest{SandboxId: args[0], User: spec.GetUser(), Cwd: spec.GetCwd(), Env: spec.GetEnv()}
			if len(args) == 2 {
				req.SessionId = args[1]
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Commands.CreateSession(cmd.Context(), req)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			fmt.Fprintln(cmd.OutOrStdout(), resp.GetSession().GetId())
			return nil
		},
	}
	o.registerPlain(cmd)
	return cmd
}

func newSessionLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls ID",
		Short: "List the sessions of a sandbox",
		Args:  exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Commands.ListSessions(cmd.Context(), &dsecv1.ListSessionsRequest{SandboxId: args[0]})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			rows := make([][]string, len(resp.GetSessions()))
			for i, s := range resp.GetSessions() {
				state := "open"
				if s.GetEnded() {
					state = "ended: " + s.GetEnd().GetMessage()
				}
				user := s.GetUser()
				if user == "" {
					user = "-"
				}
				rows[i] = []string{s.GetId(), user, ageText(s.GetCreatedAt()), state}
			}
			return table(cmd.OutOrStdout(), "SESSION USER AGE STATE", rows)
		},
	}
}

func newSessionClose() *cobra.Command {
	return &cobra.Command{
		Use:   "close ID SESSION...",
		Short: "End sessions with all that runs in them",
		Args:  rangeArgs(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			for _, s := range args[1:] {
				if _, err := c.Commands.CloseSession(cmd.Context(), &dsecv1.CloseSessionRequest{SandboxId: args[0], SessionId: s}); err != nil {
					return err
				}
				if wantJSON(cmd) {
					if err := printJSON(cmd.OutOrStdout(), map[string]string{"closed": s}); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), s)
			}
			return nil
		},
	}
}
