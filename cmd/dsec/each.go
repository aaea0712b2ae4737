package main

import (
	"context"
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

// eachSandbox makes a verb that does one thing to each sandbox that is named, goes on after an error, and prints
// the ids (or, as JSON, the sandboxes).
func eachSandbox(use, short string, do func(context.Context, *client.Client, string) (*dsecv1.Sandbox, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use + " ID...",
		Short: short,
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			failed := 0
			for _, id := range args {
				s, err := do(cmd.Context(), c, id)
				switch {
				case err != nil:
					failed++
					printError(cmd.ErrOrStderr(), wantJSON(cmd), false, fmt.Errorf("%s %s: %w", use, id, err))
				case wantJSON(cmd):
					if err := printProtoLine(cmd.OutOrStdout(), s); err != nil {
						return err
					}
				default:
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
			}
			if failed > 0 {
				return &exitError{code: 1}
			}
			return nil
		},
	}
}
