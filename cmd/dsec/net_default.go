package main

import (
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newNetDefault() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "default",
		Short: "Set and list what sandboxes made of a layer may reach",
		Long: `A default belongs to a name of the catalogue, or to one version of it: base/python:3.12, toolkit/agent@v3. Sandboxes that
are made of such a layer have its rules where they come with none of their own; where they do, a destination must be
allowed by both.`,
	}
	cmd.AddCommand(newNetDefaultSet(), newNetDefaultLs(), newNetDefaultRm())
	return cmd
}

func newNetDefaultSet() *cobra.Command {
	var limits netLimits
	cmd := &cobra.Command{
		Use:   "set KIND/NAME[@VERSION] RULE...",
		Short: "Replace the default of a base, workspace or toolkit (sandboxes that run keep what they have)",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := limits.proto(cmd)
			if err == nil && len(args) == 1 && l == nil {
				err = fmt.Errorf("give rules, limits or both (dsec net default rm takes it away)")
			}
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.NetworkDefaults.SetNetworkDefault(cmd.Context(), &dsecv1.SetNetworkDefaultRequest{Default: &dsecv1.NetworkDefault{
				Target: args[0], Policy: &dsecv1.NetworkPolicy{Rules: rulesOf(args[1:]), Limits: l},
			}})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProtoLine(cmd.OutOrStdout(), resp)
			}
			for _, w := range resp.GetWarnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "dsec: note: "+w)
			}
			return nil
		},
	}
	limits.register(cmd, "")
	return cmd
}

func newNetDefaultLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List defaults",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.NetworkDefaults.ListNetworkDefaults(cmd.Context(), &dsecv1.ListNetworkDefaultsRequest{})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			rows := make([][]string, len(resp.GetDefaults()))
			for i, d := range resp.GetDefaults() {
				rows[i] = []string{d.GetTarget(), policyText(d.GetPolicy())}
			}
			return table(cmd.OutOrStdout(), "TARGET POLICY", rows)
		},
	}
}

func newNetDefaultRm() *cobra.Command {
	return &cobra.Command{
		Use:   "rm KIND/NAME[@VERSION]...",
		Short: "Take defaults away",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			for _, target := range args {
				if _, err := c.NetworkDefaults.SetNetworkDefault(cmd.Context(), &dsecv1.SetNetworkDefaultRequest{Default: &dsecv1.NetworkDefault{Target: target}}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
