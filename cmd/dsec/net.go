package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/policy/network"
	"github.com/spf13/cobra"
)

func newNet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "net",
		Short: "Change and explain what sandboxes may reach",
	}
	cmd.AddCommand(newNetSet(), newNetExplain(), newNetServices())
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

func newNetSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set ID RULE...",
		Short: "Replace what a sandbox may reach (RULE: pypi, example.org:22, 10.0.0.0/24:5432/tcp, !github, open, none)",
		Args:  rangeArgs(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Sandboxes.SetNetwork(cmd.Context(), &dsecv1.SetNetworkRequest{SandboxId: args[0], Rules: rulesOf(args[1:])})
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
}

func newNetExplain() *cobra.Command {
	var protocol string
	cmd := &cobra.Command{
		Use:   "explain ID HOST[:PORT]",
		Short: "Tell whether a sandbox may reach a destination, and which rule decides (exit code 1: it may not)",
		Args:  exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.ExplainNetworkRequest{SandboxId: args[0], Host: args[1], Protocol: protocol}
			if host, port, err := net.SplitHostPort(args[1]); err == nil {
				n, err := strconv.Atoi(port)
				if err != nil && strings.HasPrefix(port, "//") {
					return fmt.Errorf("%s is a URL: write its host alone, or HOST:PORT", args[1])
				}
				if err != nil || n < 1 || n > 65535 {
					return fmt.Errorf("port %q: want 1 to 65535", port)
				}
				req.Host, req.Port = host, int32(n)
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Sandboxes.ExplainNetwork(cmd.Context(), req)
			if err != nil {
				return err
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
		Short: "List the built-in services that rules can name, and what each can leak",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := network.Builtin()
			var list []serviceRow
			var rows [][]string
			for _, name := range c.Names() {
				s, _ := c.Get(name)
				list = append(list, serviceRow{name, s.Title, s.Domains, s.Leaks})
				rows = append(rows, []string{name, s.Title, s.Leaks})
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return table(cmd.OutOrStdout(), "NAME TITLE LEAKS", rows)
		},
	}
}
