package main

import (
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newRuntime() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runtime",
		Short: "Runtimes of function calls: list them, and say over which base they are",
	}
	var base string
	set := &cobra.Command{
		Use:     "set NAME --base IMAGE",
		Short:   "Say over which base a runtime is, on this node for good",
		Long:    `Set holds over --opt fncall of dsec up. The base must have the runtime's tools: python3, node, gcc, g++, go, sh.`,
		Example: "  dsec runtime set python --base python:3.12",
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Calls.SetRuntime(cmd.Context(), &dsecv1.SetRuntimeRequest{Name: args[0], Base: base})
			return err
		},
	}
	set.Flags().StringVar(&base, "base", "", "base of the catalogue, `NAME` or NAME@VERSION; empty = the runtime is not available")
	_ = set.MarkFlagRequired("base")
	cmd.AddCommand(set, &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List runtimes and what their calls came to",
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Calls.ListRuntimes(cmd.Context(), &dsecv1.ListRuntimesRequest{})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			var rows [][]string
			for _, r := range resp.GetRuntimes() {
				usec := func(v float64) string { return (time.Duration(v) * time.Microsecond).String() }
				rows = append(rows, []string{r.GetName(), r.GetBase(), fmt.Sprint(r.GetCells()), fmt.Sprint(r.GetCalls()), fmt.Sprint(r.GetTimedOut()),
					fmt.Sprint(r.GetInfraFailures()), fmt.Sprint(r.GetCompileCacheHits()), fmt.Sprint(r.GetRefused()), usec(r.GetP50Usec()), usec(r.GetP99Usec())})
			}
			return table(cmd.OutOrStdout(), "NAME BASE CELLS CALLS TIMED-OUT FAILED CACHE-HITS REFUSED P50 P99", rows)
		},
	})
	return cmd
}
