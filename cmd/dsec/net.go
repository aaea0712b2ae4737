package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/policy/network"
	"github.com/spf13/cobra"
)

func newNet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Change and explain what sandboxes may reach",
	}
	cmd.AddCommand(newNetSet(), newNetExplain(), newNetDefault(), newNetServices())
	return cmd
}

// rulesOf reads rules as they stand on a command line; "!" denies.
func rulesOf(texts []string) []*dsecv1.NetworkRule {
	var out []*dsecv1.NetworkRule
	for _, t := range texts {
		target, deny := strings.CutPrefix(t, "!")
		out = append(out, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	return out
}

// netLimits are the flags of limits.
type netLimits struct {
	prefix      string
	rate        string
	connections int64
}

func (l *netLimits) register(cmd *cobra.Command, prefix string) {
	l.prefix = prefix
	cmd.Flags().StringVar(&l.rate, prefix+"rate", "", "bytes that it may send, and receive, in a second, like 10m (0: no limit)")
	cmd.Flags().Int64Var(&l.connections, prefix+"connections", 0, "connections that it may have open at once (0: the node's own bound)")
}

// proto is nil where no limit was given.
func (l *netLimits) proto(cmd *cobra.Command) (*dsecv1.NetworkLimits, error) {
	rate, connections := cmd.Flags().Changed(l.prefix+"rate"), cmd.Flags().Changed(l.prefix+"connections")
	if !rate && !connections {
		return nil, nil
	}
	out := &dsecv1.NetworkLimits{Connections: l.connections}
	if rate {
		n, err := parseSize(l.rate)
		if err != nil {
			return nil, fmt.Errorf("--%srate: %w", l.prefix, err)
		}
		out.BandwidthBps = n
	}
	return out, nil
}

func newNetSet() *cobra.Command {
	var limits netLimits
	cmd := &cobra.Command{
		Use:   "set ID RULE...",
		Short: "Replace what a sandbox may reach (RULE: pypi, example.org:22, 10.0.0.0/24:5432/tcp, !github, open, none)",
		Long: `Set replaces what a sandbox may reach, and its limits where they are given: all of them at once. With limits and no
rules, the rules stay as they are.`,
		Args: rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := limits.proto(cmd)
			if err != nil {
				return &exitError{2, err}
			}
			if len(args) == 1 && l == nil {
				return &exitError{2, fmt.Errorf("1 arguments do not fit: usage: %s", cmd.UseLine())}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Sandboxes.SetNetwork(cmd.Context(), &dsecv1.SetNetworkRequest{
				SandboxId: args[0], Rules: rulesOf(args[1:]), Limits: l, KeepRules: len(args) == 1,
			})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProtoLine(cmd.OutOrStdout(), resp)
			}
			for _, w := range resp.GetWarnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "dsec: note: "+w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "generation %d is in force\n", resp.GetNetwork().GetGenerationApplied())
			return nil
		},
	}
	limits.register(cmd, "")
	return cmd
}

func newNetExplain() *cobra.Command {
	var protocol string
	cmd := &cobra.Command{
		Use:   "explain ID HOST[:PORT]",
		Short: "Tell whether a sandbox may reach a destination, and which rule decides (exit code 1: it may not)",
		Long: `Explain tells whether a sandbox may reach a destination, and which rule of whose decides. Nothing is connected to.

Exit codes: 0 it may, 1 it may not, 2 what was asked makes no sense, 125 nobody could tell.`,
		Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.ExplainNetworkRequest{SandboxId: args[0], Host: args[1], Protocol: protocol}
			if host, port, err := net.SplitHostPort(args[1]); err == nil {
				n, err := strconv.Atoi(port)
				if err != nil && strings.HasPrefix(port, "//") {
					return &exitError{2, fmt.Errorf("%s is a URL: write its host alone, or HOST:PORT", args[1])}
				}
				if err != nil || n < 1 || n > 65535 {
					return &exitError{2, fmt.Errorf("port %q: want 1 to 65535", port)}
				}
				req.Host, req.Port = host, int32(n)
			}
			c, err := newClient()
			if err != nil {
				return &exitError{exitInfra, err}
			}
			defer c.Close()
			resp, err := c.Sandboxes.ExplainNetwork(cmd.Context(), req)
			switch {
			case connect.CodeOf(err) == connect.CodeInvalidArgument:
				return &exitError{2, err}
			case err != nil:
				return &exitError{exitInfra, err}
			}
			if wantJSON(cmd) {
				if err := printProtoLine(cmd.OutOrStdout(), resp); err != nil {
					return err
				}
			} else {
				d := network.Decision{Allowed: resp.GetAllowed(), Rule: resp.GetRule(), Source: network.Source(resp.GetSource()), Why: resp.GetWhy()}
				fmt.Fprintln(cmd.OutOrStdout(), d)
			}
			if !resp.GetAllowed() {
				return &exitError{code: 1}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&protocol, "protocol", "tcp", "tcp, udp or icmp")
	return cmd
}

// serviceRow is a service as it is listed.
type serviceRow struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Domains []string `json:"domains"`
	Leaks   string   `json:"leaks"`
}

func newNetServices() *cobra.Command {
	return &cobra.Command{
		Use:   "services",
		Short: "List the services that rules can name on the node, and what each can leak",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Node.ListServices(cmd.Context(), &dsecv1.ListServicesRequest{})
			if err != nil {
				return err
			}
			var list []serviceRow
			var rows [][]string
			for _, s := range resp.GetServices() {
				list = append(list, serviceRow{s.GetName(), s.GetTitle(), s.GetDomains(), s.GetLeaks()})
				rows = append(rows, []string{s.GetName(), s.GetTitle(), s.GetLeaks()})
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return table(cmd.OutOrStdout(), "NAME TITLE LEAKS", rows)
		},
	}
}
