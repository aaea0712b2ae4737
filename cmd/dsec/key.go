package main

import (
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Make, list and revoke API keys"}
	cmd.AddCommand(newKeyCreate(), newKeyLs(), newKeyRevoke())
	return cmd
}

func newKeyCreate() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Make a key and print it, this once",
		Args:  rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.CreateKeyRequest{Format: format}
			if len(args) == 1 {
				req.Name = args[0]
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Keys.CreateKey(cmd.Context(), req)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			fmt.Fprintln(cmd.OutOrStdout(), resp.GetSecret())
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "dsec", "shape of the key: dsec, or e2b for clients that insist on it")
	return cmd
}

func newKeyLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List keys (never their secrets)",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Keys.ListKeys(cmd.Context(), &dsecv1.ListKeysRequest{})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			rows := make([][]string, len(resp.GetKeys()))
			for i, k := range resp.GetKeys() {
				state := "good"
				if k.GetRevokedAt() != nil {
					state = "revoked " + k.GetRevokedAt().AsTime().Local().Format(time.DateTime)
				}
				rows[i] = []string{k.GetId(), k.GetName(), k.GetFormat(), k.GetCreatedAt().AsTime().Local().Format(time.DateTime), state}
			}
			return table(cmd.OutOrStdout(), "ID NAME FORMAT CREATED STATE", rows)
		},
	}
}

func newKeyRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID...",
		Short: "Revoke keys, at once and for ever",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			for _, id := range args {
				resp, err := c.Keys.RevokeKey(cmd.Context(), &dsecv1.RevokeKeyRequest{Id: id})
				if err != nil {
					return err
				}
				if wantJSON(cmd) {
					if err := printProtoLine(cmd.OutOrStdout(), resp); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return nil
		},
	}
}
