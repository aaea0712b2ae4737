package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// part is one version that a stack names, of one layer or of several.
type part struct {
	kind dsecv1.LayerKind
	ref  string // NAME@V, or a digest where the catalogue has no name for it
	sum  string // of its topmost layer
}

func (p part) String() string {
	if p.kind == 0 {
		return p.ref
	}
	return kindText(p.kind) + " " + p.ref
}

// partsOf lists what a stack is made of now, bottom to top.
func partsOf(cmd *cobra.Command, c *client.Client, name string) ([]part, *dsecv1.InspectEnvironmentResponse, error) {
	resp, err := c.Environments.InspectEnvironment(cmd.Context(), &dsecv1.InspectEnvironmentRequest{Environment: &dsecv1.Environment{Name: name}, Paths: -1})
	if err != nil {
		return nil, nil, err
	}
	var out []part
	for _, u := range resp.GetLayers() {
		l := u.GetLayer()
		p := part{ref: l.GetDigest(), sum: l.GetDigest()}
		if l.GetName() != "" {
			p.kind = dsecv1.LayerKind(dsecv1.LayerKind_value["LAYER_KIND_"+strings.ToUpper(l.GetKind())])
			p.ref = l.GetName() + "@" + l.GetVersion()
		}
		if n := len(out) - 1; n >= 0 && p.kind != 0 && out[n].ref == p.ref && out[n].kind == p.kind {
			out[n] = p // another layer of the same version
			continue
		}
		out = append(out, p)
	}
	return out, resp, nil
}

func newEnvDiff() *cobra.Command {
	var contents bool
	cmd := &cobra.Command{Use: "diff ENVIRONMENT ENVIRONMENT", Short: "Show what differs between two environments (exit code 1 when something does)",
		Long: `Diff compares what two environments are made of now: parts that were added (A), removed (D) or have another version (M), with
the files that differ between the versions, and what applies at run. --contents compares contents too, as dsec layer diff does.`,
		Example: "  dsec env diff django django-next", Args: exactArgs(2)}
	cmd.Flags().BoolVar(&contents, "contents", false, "compare contents of files too")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		from, a, err := partsOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		to, b, err := partsOf(cmd, c, args[1])
		if err != nil {
			return err
		}
		changes := pairParts(from, to)
		config := configChanges(a.GetConfig(), b.GetConfig())
		if err := printEnvDiff(cmd, c, changes, config, contents); err != nil {
			return err
		}
		if len(changes)+len(config) > 0 {
			return errDiffers
		}
		return nil
	}
	return cmd
}

// partChange is a part that differs: without from it was added, without to removed.
type partChange struct{ from, to *part }

// pairParts finds what differs between two stacks: bases and workspaces belong together, toolkits by their names.
func pairParts(from, to []part) []partChange {
	key := func(p part) string {
		if p.kind == dsecv1.LayerKind_LAYER_KIND_TOOLKIT || p.kind == 0 {
			name, _, _ := strings.Cut(p.ref, "@")
			return fmt.Sprint(p.kind, name)
		}
		return fmt.Sprint(p.kind)
	}
	old := map[string]*part{}
	for i := range from {
		old[key(from[i])] = &from[i]
	}
	var out []partChange
	for i := range to {
		k := key(to[i])
		was := old[k]
		delete(old, k)
		if was == nil || was.sum != to[i].sum {
			out = append(out, partChange{was, &to[i]})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(old)) {
		out = append(out, partChange{from: old[k]})
	}
	return out
}

// configChanges says what applies at run in another way.
func configChanges(a, b *dsecv1.ImageConfig) []string {
	var out []string
	for _, f := range []struct {
		name     string
		from, to []string
	}{
		{"env", a.GetEnv(), b.GetEnv()}, {"user", []string{a.GetUser()}, []string{b.GetUser()}}, {"workdir", []string{a.GetWorkdir()}, []string{b.GetWorkdir()}},
		{"entrypoint", a.GetEntrypoint(), b.GetEntrypoint()}, {"cmd", a.GetCmd(), b.GetCmd()},
	} {
		if !slices.Equal(f.from, f.to) {
			out = append(out, fmt.Sprintf("%s: %q -> %q", f.name, f.from, f.to))
		}
	}
	return out
}

func printEnvDiff(cmd *cobra.Command, c *client.Client, changes []partChange, config []string, contents bool) error {
	w := cmd.OutOrStdout()
	word := func(p *part) string {
		if p == nil {
			return ""
		}
		return p.String()
	}
	if wantJSON(cmd) {
		type pair struct {
			From string `json:"from,omitempty"`
			To   string `json:"to,omitempty"`
		}
		out := struct {
			Parts  []pair   `json:"parts"`
			Config []string `json:"config"`
		}{[]pair{}, append([]string{}, config...)}
		for _, ch := range changes {
			out.Parts = append(out.Parts, pair{word(ch.from), word(ch.to)})
		}
		return printJSON(w, out)
	}
	for _, ch := range changes {
		switch {
		case ch.from == nil:
			fmt.Fprintf(w, "A %s\n", ch.to)
		case ch.to == nil:
			fmt.Fprintf(w, "D %s\n", ch.from)
		default:
			fmt.Fprintf(w, "M %s -> %s\n", ch.from, ch.to)
			if ch.from.kind == 0 || ch.to.kind == 0 {
				continue
			}
			if err := printFileChanges(cmd, c, *ch.from, *ch.to, contents); err != nil {
				return err
			}
		}
	}
	for _, line := range config {
		fmt.Fprintf(w, "M %s\n", printable(line))
	}
	return nil
}

func printFileChanges(cmd *cobra.Command, c *client.Client, from, to part, contents bool) error {
	s, err := c.Layers.DiffLayers(cmd.Context(), &dsecv1.DiffLayersRequest{Kind: from.kind, From: from.ref, To: to.ref, Contents: contents})
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		for _, f := range s.Msg().GetChanges() {
			fmt.Fprint(cmd.OutOrStdout(), "  ")
			printChange(cmd.OutOrStdout(), f)
		}
	}
	return c.Explain(s.Err())
}

func newEnvVerify() *cobra.Command {
	return &cobra.Command{Use: "verify ENVIRONMENT...", Short: "Read all layers of environments and compare them with their digests", Args: rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			var errs []error
			for _, name := range args {
				parts, _, err := partsOf(cmd, c, name)
				if err != nil {
					return err
				}
				for _, p := range parts {
					resp, err := c.Layers.VerifyLayer(cmd.Context(), &dsecv1.VerifyLayerRequest{Kind: p.kind, Reference: p.ref})
					if err != nil {
						errs = append(errs, fmt.Errorf("environment %s: %s: %w", name, p, err))
						continue
					}
					if wantJSON(cmd) {
						err = printProtoLine(cmd.OutOrStdout(), resp)
					} else {
						_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s ok %s\n", name, p, bytesText(resp.GetBytes()))
					}
					if err != nil {
						return err
					}
				}
			}
			return errors.Join(errs...)
		}}
}

func newEnvTrace() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "trace ENVIRONMENT", Short: "Show what this node has read of an environment's layers", Args: exactArgs(1),
		Long: "Trace shows for each layer of an environment what dsec layer trace shows. It needs root on a node that reads layers on demand."}
	stateFlag(cmd, &dir)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		_, resp, err := partsOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		var digests []string
		for _, u := range resp.GetLayers() {
			digests = append(digests, u.GetLayer().GetDigest())
		}
		return printTraces(cmd, dir, digests)
	}
	return cmd
}
