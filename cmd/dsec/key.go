package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/cluster/netrules"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Make, list and revoke API keys"}
	cmd.AddCommand(newKeyCreate(), newKeyLs(), newKeyRevoke())
	return cmd
}

func newKeyCreate() *cobra.Command {
	var format, state, project string
	var e2b bool
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Make a key and print it, this once",
		Long: `Create makes a key and prints it, this once.

It asks the service, with the key that every verb uses. Where that key is refused, or none is known, and with --state,
it makes the key on this machine's own node instead, for whoever may enter its state directory: the way back when the
last key was revoked.

Sandboxes belong to the project of the key that they are created with, and are under its ceiling (dsec project network).
The service makes keys of the asking key's project alone; any other is made with --state.`,
		Args: rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if e2b {
				if cmd.Flags().Changed("format") && format != string(iam.FormatE2B) {
					return &exitError{2, fmt.Errorf("--e2b and --format %s: want one of them", format)}
				}
				format = string(iam.FormatE2B)
			}
			req := &dsecv1.CreateKeyRequest{Format: format, Project: project}
			if len(args) == 1 {
				req.Name = args[0]
			}
			abs, err := filepath.Abs(state)
			if err != nil {
				return err
			}
			resp, err := createKey(cmd.Context(), req, stateDir(abs), cmd.Flags().Changed("state"))
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
	stateFlag(cmd, &state)
	cmd.Flags().StringVar(&project, "project", "", "project `NAME` of the key (default: that of the key that asks; with --state, default)")
	cmd.Flags().StringVar(&format, "format", "dsec", "shape of the key: dsec, or e2b for clients that insist on it")
	cmd.Flags().BoolVar(&e2b, "e2b", false, "make a key for E2B clients (E2B_API_KEY): --format e2b")
	return cmd
}

// createKey asks the service for a key; it makes one on the node itself when that is wanted, or when the service is this
// machine's node and takes no key that is known here.
func createKey(ctx context.Context, req *dsecv1.CreateKeyRequest, d stateDir, onNode bool) (*dsecv1.CreateKeyResponse, error) {
	if onNode {
		return createKeyOnNode(ctx, req, d)
	}
	c, err := newClient()
	if err == nil {
		defer c.Close()
		var resp *dsecv1.CreateKeyResponse
		if resp, err = c.Keys.CreateKey(ctx, req); err == nil {
			return resp, nil
		}
	}
	refused := errors.Is(err, client.ErrNoConfig) || connect.CodeOf(err) == connect.CodeUnauthenticated
	if up, uerr := d.readUp(); refused && uerr == nil && (c == nil || c.URL() == up.URL) {
		return createKeyOnNode(ctx, req, d)
	}
	if refused {
		err = fmt.Errorf("%w (on the node itself, `dsec key create --state DIRECTORY` needs no key)", err)
	}
	return nil, err
}

// keyWait bounds the making of a key on the node.
const keyWait = 10 * time.Second

// createKeyOnNode makes a key in the node's engine. Its socket is for whoever may enter the state directory.
func createKeyOnNode(ctx context.Context, req *dsecv1.CreateKeyRequest, d stateDir) (*dsecv1.CreateKeyResponse, error) {
	if _, err := os.ReadDir(d.path("run")); err != nil {
		return nil, fmt.Errorf("make a key on the node: %w: --state names its directory, which its owner (root) can enter", err)
	}
	if holder(d.path("lock")) == 0 {
		return nil, fmt.Errorf("no node runs on %s: start one with `dsec up --detach%s`, which makes a key", d, stateHint(d))
	}
	etcd, err := engine.Dial(d.endpoint("engine"))
	if err != nil {
		return nil, err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	if p := req.GetProject(); p != "" && !netrules.ValidProject(p) {
		return nil, &exitError{2, fmt.Errorf("--project %q: want 1 to 63 lower-case letters, digits and dashes, beginning with a letter or digit", p)}
	}
	key, secret, err := iam.New(etcd, iam.Options{Log: slog.New(slog.DiscardHandler)}).CreateIn(ctx, req.GetProject(), req.GetName(), iam.Format(req.GetFormat()))
	if err != nil {
		return nil, fmt.Errorf("make a key on the node: %w", err)
	}
	return &dsecv1.CreateKeyResponse{Secret: secret, Key: &dsecv1.Key{
		Id: key.ID, Name: key.Name, Format: string(key.Format), CreatedAt: timestamppb.New(key.CreatedAt),
		Project: cmp.Or(key.Project, netrules.DefaultProject),
	}}, nil
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
				rows[i] = []string{k.GetId(), k.GetName(), k.GetProject(), k.GetFormat(), k.GetCreatedAt().AsTime().Local().Format(time.DateTime), state}
			}
			return table(cmd.OutOrStdout(), "ID NAME PROJECT FORMAT CREATED STATE", rows)
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
