package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/netrules"
	"github.com/spf13/cobra"
)

func newProject() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "project",
		Short: "Bound what the sandboxes of a project may reach",
		Long: `A project is what API keys belong to (dsec key create --project NAME --state DIRECTORY), and the sandboxes that are created
with them. These verbs are for whoever owns the node: they need its state directory, and no key.`,
	}
	network := &cobra.Command{
		Use:   "network",
		Short: "Set, show and remove ceilings",
		Long: `A ceiling bounds what sandboxes of a project may reach, whatever their own rules and those of their environments allow. It
opens nothing by itself. A change holds for sandboxes that run, too.`,
	}
	network.AddCommand(newProjectNetworkSet(), newProjectNetworkGet(), newProjectNetworkRm())
	cmd.AddCommand(network, newProjectLs())
	return cmd
}

// onNode runs f with the policies of this machine's node.
func onNode(cmd *cobra.Command, state string, f func(ctx context.Context, d stateDir, s *netrules.Store) error) error {
	abs, err := filepath.Abs(state)
	if err != nil {
		return err
	}
	d := stateDir(abs)
	if holder(d.path("lock")) == 0 {
		return fmt.Errorf("no node runs on %s, or it is not yours: --state names the directory of one that does, which its owner (root) can enter", d)
	}
	etcd, err := engine.Dial(d.endpoint("engine"))
	if err != nil {
		return err
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), edgePatience+keyWait)
	defer cancel()
	return f(ctx, d, netrules.New(etcd, slog.New(slog.DiscardHandler)))
}

// edgeOf calls the node's edge by its own socket.
func edgeOf(d stateDir) (c dsecv1connect.EdgeServiceClient, done func()) {
	hc := edgeHTTP(d)
	return dsecv1connect.NewEdgeServiceClient(hc, edgeURL, patient(edgePatience)), hc.CloseIdleConnections
}

// setCeiling records a ceiling, nil for none, and puts running sandboxes of this node under it. Other nodes' follow within
// a second.
func setCeiling(ctx context.Context, cmd *cobra.Command, d stateDir, s *netrules.Store, name string, p *dsecv1.NetworkPolicy) error {
	edge, done := edgeOf(d)
	defer done()
	checked, err := edge.CheckNetwork(ctx, &dsecv1.CheckNetworkRequest{Policy: p})
	if err != nil {
		return err
	}
	if err := s.SetProject(ctx, name, p); err != nil {
		return err
	}
	all, err := s.ReadCeilings(ctx)
	if err != nil {
		return err
	}
	resp, err := edge.SetCeilings(ctx, all)
	if err != nil {
		return fmt.Errorf("the ceiling is recorded, and will be in force once the edge answers: %w", err)
	}
	if wantJSON(cmd) {
		return printProtoLine(cmd.OutOrStdout(), resp)
	}
	for _, w := range checked.GetWarnings() {
		fmt.Fprintln(cmd.ErrOrStderr(), "dsec: note: "+w)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "project %s: %s\n", name, policyText(p))
	if len(resp.GetErrors()) > 0 {
		return fmt.Errorf("not everywhere: %s", strings.Join(resp.GetErrors(), "; "))
	}
	return nil
}

func newProjectNetworkSet() *cobra.Command {
	var limits netLimits
	var state string
	cmd := &cobra.Command{
		Use:   "set NAME RULE...",
		Short: "Replace a project's ceiling (RULE as in dsec net set; without rules, limits alone)",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := limits.proto(cmd)
			if err == nil && len(args) == 1 && l == nil {
				err = fmt.Errorf("give rules, limits or both (dsec project network rm takes the ceiling away)")
			}
			if err != nil {
				return &exitError{2, err}
			}
			return onNode(cmd, state, func(ctx context.Context, d stateDir, s *netrules.Store) error {
				return setCeiling(ctx, cmd, d, s, args[0], &dsecv1.NetworkPolicy{Rules: rulesOf(args[1:]), Limits: l})
			})
		},
	}
	limits.register(cmd, "")
	stateFlag(cmd, &state)
	return cmd
}

func newProjectNetworkRm() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Take a project's ceiling away",
		Args:  exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onNode(cmd, state, func(ctx context.Context, d stateDir, s *netrules.Store) error {
				return setCeiling(ctx, cmd, d, s, args[0], nil)
			})
		},
	}
	stateFlag(cmd, &state)
	return cmd
}

func newProjectNetworkGet() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show a project's ceiling",
		Args:  exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onNode(cmd, state, func(ctx context.Context, _ stateDir, s *netrules.Store) error {
				all, err := s.ReadCeilings(ctx)
				if err != nil {
					return err
				}
				p := all.GetProjects()[args[0]]
				if wantJSON(cmd) {
					return printProtoLine(cmd.OutOrStdout(), p)
				}
				fmt.Fprintln(cmd.OutOrStdout(), policyText(p))
				return nil
			})
		},
	}
	stateFlag(cmd, &state)
	return cmd
}

func newProjectLs() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List projects that have a ceiling",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onNode(cmd, state, func(ctx context.Context, _ stateDir, s *netrules.Store) error {
				all, err := s.ReadCeilings(ctx)
				if err != nil {
					return err
				}
				if wantJSON(cmd) {
					return printProto(cmd.OutOrStdout(), all)
				}
				var rows [][]string
				for _, name := range slices.Sorted(maps.Keys(all.GetProjects())) {
					rows = append(rows, []string{name, policyText(all.GetProjects()[name])})
				}
				return table(cmd.OutOrStdout(), "PROJECT CEILING", rows)
			})
		},
	}
	stateFlag(cmd, &state)
	return cmd
}

// policyText is a policy for people.
func policyText(p *dsecv1.NetworkPolicy) string {
	var words []string
	for _, r := range p.GetRules() {
		words = append(words, map[bool]string{true: "", false: "!"}[r.GetAllow()]+r.GetTarget())
	}
	if n := p.GetLimits().GetBandwidthBps(); n > 0 {
		words = append(words, fmt.Sprintf("rate=%d", n))
	}
	if n := p.GetLimits().GetConnections(); n > 0 {
		words = append(words, fmt.Sprintf("connections=%d", n))
	}
	if len(words) == 0 {
		return "no ceiling"
	}
	return strings.Join(words, " ")
}
