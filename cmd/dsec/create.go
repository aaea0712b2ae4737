package main

import (
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newCreate() *cobra.Command {
	var f specFlags
	var count int32
	var key string
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create sandboxes and print their ids",
		Example: `  dsec create --base debian --workspace django@v3 --toolkit agent --memory 1g --ttl 30m
  dsec create --image docker.io/library/python:3.12 --count 8 --label job=42`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := f.spec(cmd)
			if err != nil {
				return &exitError{2, err}
			}
			if count < 1 {
				return &exitError{2, fmt.Errorf("--count %d: must be above 0", count)}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			made, err := c.Create(cmd.Context(), &dsecv1.CreateSandboxRequest{Spec: spec, Count: count, IdempotencyKey: key})
			if wantJSON(cmd) && (err == nil || len(made) > 0) {
				if perr := printProto(cmd.OutOrStdout(), &dsecv1.ListSandboxesResponse{Sandboxes: made}); perr != nil {
					return perr
				}
				return err
			}
			for _, s := range made {
				fmt.Fprintln(cmd.OutOrStdout(), s.GetId())
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().Int32Var(&count, "count", 1, "how many of the same")
	cmd.Flags().StringVar(&key, "idempotency-key", "", "the same key again returns the same sandboxes")
	return cmd
}
