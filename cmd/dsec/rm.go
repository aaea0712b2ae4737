package main

import (
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newRm() *cobra.Command {
	var labels []string
	cmd := eachSandbox("rm", "End sandboxes by id, or all with some labels", stopSandbox)
	byID := cmd.RunE
	cmd.Use = "rm {ID... | --label NAME=VALUE}"
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) == (len(labels) == 0) {
			return &exitError{2, fmt.Errorf("name sandboxes or give --label NAME=VALUE")}
		}
		if len(labels) == 0 {
			return byID(cmd, args)
		}
		sel, err := parsePairs("--label", labels, nil)
		if err != nil {
			return &exitError{2, err}
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Sandboxes.StopSandboxes(cmd.Context(), &dsecv1.StopSandboxesRequest{Labels: sel})
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		for _, id := range resp.GetStoppedIds() {
			fmt.Fprintln(cmd.OutOrStdout(), id)
		}
		return nil
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "every sandbox with label `NAME=VALUE` (all must match)")
	return cmd
}
