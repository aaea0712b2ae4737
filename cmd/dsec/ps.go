package main

import (
	"context"
	"fmt"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/spf13/cobra"
)

func newPs() *cobra.Command {
	var all, quiet bool
	var labels []string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List sandboxes",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			sel, err := parsePairs("--label", labels, nil)
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			boxes, err := listAll(cmd.Context(), c.Sandboxes, sel, all)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), &dsecv1.ListSandboxesResponse{Sandboxes: boxes})
			}
			if quiet {
				for _, s := range boxes {
					fmt.Fprintln(cmd.OutOrStdout(), s.GetId())
				}
				return nil
			}
			rows := make([][]string, len(boxes))
			for i, s := range boxes {
				rows[i] = []string{s.GetId(), stateText(s), environmentText(s.GetSpec().GetEnvironment()), ageText(s.GetCreatedAt()),
					fmt.Sprint(s.GetRunningCommands()), labelText(s.GetSpec().GetLabels())}
			}
			return table(cmd.OutOrStdout(), "ID STATE ENVIRONMENT AGE COMMANDS LABELS", rows)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "ended ones too")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "ids only")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only with label `NAME=VALUE` (all must match)")
	return cmd
}

// listAll reads every page.
func listAll(ctx context.Context, c dsecv1connect.SandboxServiceClient, labels map[string]string, ended bool) ([]*dsecv1.Sandbox, error) {
	req := &dsecv1.ListSandboxesRequest{Labels: labels, PageSize: 1000}
	if ended {
		for v := range dsecv1.SandboxState_name {
			if v != 0 {
				req.States = append(req.States, dsecv1.SandboxState(v))
			}
		}
	}
	var out []*dsecv1.Sandbox
	for {
		resp, err := c.ListSandboxes(ctx, req)
		if err != nil {
			return nil, err
		}
		out = append(out, resp.GetSandboxes()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return out, nil
		}
	}
}

func stateText(s *dsecv1.Sandbox) string {
	state := enumText(s.GetState().String(), "SANDBOX_STATE_")
	if s.GetSaved() {
		state += " (saved)"
	}
	if kind := s.GetEnd().GetKind(); kind != "" {
		state += " (" + kind + ")"
	}
	return state
}

func environmentText(e *dsecv1.Environment) string {
	var parts []string
	for _, p := range append([]string{e.GetName(), e.GetImage(), e.GetBase(), e.GetWorkspace(), e.GetSnapshot()}, e.GetToolkits()...) {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if n := len(e.GetLayers()); n > 0 {
		parts = append(parts, fmt.Sprintf("%d layers", n))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, "+")
}
