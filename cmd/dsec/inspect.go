package main

import (
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newInspect() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect ID...",
		Short: "Print all that is known of a sandbox, as JSON",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			for _, id := range args {
				resp, err := c.Sandboxes.GetSandbox(cmd.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
				if err != nil {
					return err
				}
				if err := printProto(cmd.OutOrStdout(), resp.GetSandbox()); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
