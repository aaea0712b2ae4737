package main

import (
	"github.com/opendsec/dsec/internal/hold"
	"github.com/spf13/cobra"
)

func init() { extra = append(extra, newHold) }

func newHold() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "hold --socket PATH",
		Short:  "Keep descriptors that must outlive the other roles (started by `dsec up`)",
		Hidden: true,
		Args:   exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return hold.Serve(cmd.Context(), socket)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "`path` of the socket")
	return cmd
}
