package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// layerPick is how a verb is told which version is meant: `image` verbs take it as an argument, `layer` verbs by one of
// three flags.
type layerPick struct {
	kind  dsecv1.LayerKind // unspecified = by flags
	flags layerName
}

func newPick(kind dsecv1.LayerKind) *layerPick { return &layerPick{kind: kind} }

// usage is the verb's usage with what else it takes.
func (p *layerPick) usage(verb, rest string) string {
	if p.kind != 0 {
		return strings.TrimSpace(verb + " NAME[@V] " + rest)
	}
	return strings.TrimSpace(verb + " {--base|--workspace|--toolkit NAME[@V]} " + rest)
}

// take registers the flags, and returns what splits arguments into the version that is meant and n others.
func (p *layerPick) take(cmd *cobra.Command, n int) func(args []string) (dsecv1.LayerKind, string, []string, error) {
	if p.kind != 0 {
		cmd.Args = exactArgs(n + 1)
		return func(args []string) (dsecv1.LayerKind, string, []string, error) { return p.kind, args[0], args[1:], nil }
	}
	cmd.Args = exactArgs(n)
	p.flags.register(cmd)
	return func(args []string) (dsecv1.LayerKind, string, []string, error) {
		kind, name, err := p.flags.get()
		return kind, name, args, err
	}
}

func newLayerInspect(kind dsecv1.LayerKind) *cobra.Command {
	p := newPick(kind)
	cmd := &cobra.Command{Use: p.usage("inspect", ""), Short: "Show a version as JSON, with the environments that name it"}
	pick := p.take(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, ref, _, err := pick(args)
		if err != nil {
			return err
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Layers.GetLayer(cmd.Context(), &dsecv1.GetLayerRequest{Kind: kind, Reference: ref})
		if err != nil {
			return err
		}
		return printProto(cmd.OutOrStdout(), resp)
	}
	return cmd
}

func newLayerTag(kind dsecv1.LayerKind) *cobra.Command {
	p := newPick(kind)
	var remove bool
	cmd := &cobra.Command{Use: p.usage("tag", "TAG"), Short: "Move a tag to a version (NAME@TAG then means it), or take it away"}
	pick := p.take(cmd, 1)
	cmd.Flags().BoolVar(&remove, "remove", false, "take the tag away")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, ref, rest, err := pick(args)
		if err != nil {
			return err
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Layers.TagLayer(cmd.Context(), &dsecv1.TagLayerRequest{Kind: kind, Reference: ref, Tag: rest[0], Remove: remove})
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		if l := resp.GetLayer(); l != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s@%s is %s@%s\n", kindText(l.GetKind()), l.GetName(), rest[0], l.GetName(), l.GetVersion())
		}
		return nil
	}
	return cmd
}

// errDiffers is the exit code of a diff that found something, as diff(1) has it.
var errDiffers = &exitError{code: 1}

func newLayerDiff(kind dsecv1.LayerKind) *cobra.Command {
	p := newPick(kind)
	var contents bool
	var limit int64
	use := p.usage("diff", "NAME[@V]")
	if kind == 0 {
		use = "diff {--base|--workspace|--toolkit NAME[@V]} {NAME[@V]|@V}"
	}
	cmd := &cobra.Command{Use: use, Short: "Show the files that differ between two versions (exit code 1 when some do)",
		Long: `Diff compares what two versions show: A = added, D = removed, M = changed and in what. Contents are taken to be equal
when size and time are; --contents reads them. @V alone means another version of the same name.`}
	pick := p.take(cmd, 1)
	cmd.Flags().BoolVar(&contents, "contents", false, "compare contents too")
	cmd.Flags().Int64Var(&limit, "limit", 0, "stop after so many files")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, from, rest, err := pick(args)
		if err != nil {
			return err
		}
		to := rest[0]
		if strings.HasPrefix(to, "@") {
			name, _, _ := strings.Cut(from, "@")
			to = name + to
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := c.Layers.DiffLayers(cmd.Context(), &dsecv1.DiffLayersRequest{Kind: kind, From: from, To: to, Contents: contents, Limit: limit})
		if err != nil {
			return err
		}
		defer s.Close()
		differs := false
		for s.Receive() {
			for _, f := range s.Msg().GetChanges() {
				differs = true
				if wantJSON(cmd) {
					if err := printProtoLine(cmd.OutOrStdout(), f); err != nil {
						return err
					}
					continue
				}
				printChange(cmd.OutOrStdout(), f)
			}
		}
		if err := s.Err(); err != nil {
			return c.Explain(err)
		}
		if differs {
			return errDiffers
		}
		return nil
	}
	return cmd
}

func printChange(w io.Writer, f *dsecv1.FileChange) {
	switch f.GetKind() {
	case "added":
		fmt.Fprintf(w, "A %s\n", printable(f.GetPath()))
	case "removed":
		fmt.Fprintf(w, "D %s\n", printable(f.GetPath()))
	default:
		fmt.Fprintf(w, "M %s (%s)\n", printable(f.GetPath()), strings.Join(f.GetWhat(), ", "))
	}
}

func newLayerVerify(kind dsecv1.LayerKind) *cobra.Command {
	p := newPick(kind)
	use := "verify [NAME[@V]]"
	if kind == 0 {
		use = "verify [--base|--workspace|--toolkit NAME[@V]]"
	}
	cmd := &cobra.Command{Use: use, Short: "Read whole versions and compare them with their digests (without a name: all)"}
	pick := p.take(cmd, 0)
	cmd.Args = rangeArgs(0, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		type one struct {
			kind dsecv1.LayerKind
			ref  string
		}
		var all []one
		if len(args) == 0 && p.flags == (layerName{}) {
			resp, err := c.Layers.ListLayers(cmd.Context(), &dsecv1.ListLayersRequest{Kind: kind})
			if err != nil {
				return err
			}
			for _, l := range resp.GetLayers() {
				all = append(all, one{l.GetKind(), l.GetName() + "@" + l.GetVersion()})
			}
		} else {
			k, ref, _, err := pick(args)
			if err != nil {
				return err
			}
			all = []one{{k, ref}}
		}
		var errs []error
		for _, l := range all {
			resp, err := c.Layers.VerifyLayer(cmd.Context(), &dsecv1.VerifyLayerRequest{Kind: l.kind, Reference: l.ref})
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", kindText(l.kind), l.ref, err))
				continue
			}
			if wantJSON(cmd) {
				err = printProtoLine(cmd.OutOrStdout(), resp)
			} else {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s@%s ok %s\n", kindText(resp.GetLayer().GetKind()), resp.GetLayer().GetName(), resp.GetLayer().GetVersion(), bytesText(resp.GetBytes()))
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}

func newLayerCollapse() *cobra.Command {
	p := newPick(0)
	var most string
	cmd := &cobra.Command{Use: p.usage("collapse", ""), Short: "Publish a version that shows the same tree in fewer layers",
		Long: `Collapse makes consecutive layers of a version that is a stack (what was built or packed) into one, as long as they
are not larger than --max-size together, and publishes the result as the next version of the name.`}
	pick := p.take(cmd, 0)
	cmd.Flags().StringVar(&most, "max-size", "3g", "how large a layer may become")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, ref, _, err := pick(args)
		if err != nil {
			return err
		}
		size, err := parseSize(most)
		if err != nil || size <= 0 {
			return &exitError{2, fmt.Errorf("--max-size %q: want a size like 3g", most)}
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		pr := newProgress(cmd.ErrOrStderr())
		defer pr.stop()
		s, err := c.Layers.CollapseLayer(cmd.Context(), &dsecv1.CollapseLayerRequest{Kind: kind, Reference: ref, MaxBytes: size})
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
			msg := s.Msg()
			if msg.GetLayer() == nil {
				pr.show(msg.GetProgress())
				continue
			}
			pr.stop()
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), msg)
			}
			l := msg.GetLayer()
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s@%s %d layers, were %d\n", kindText(l.GetKind()), l.GetName(), l.GetVersion(), msg.GetLayersAfter(), msg.GetLayersBefore())
			return nil
		}
		if err := s.Err(); err != nil {
			return c.Explain(err)
		}
		return fmt.Errorf("collapse ended without a layer: %w", io.ErrUnexpectedEOF)
	}
	return cmd
}

func newLayerGC() *cobra.Command {
	var dry bool
	var steps string
	cmd := &cobra.Command{Use: "gc", Short: "Remove content that no name, environment, build step or running sandbox refers to",
		Long: `Content goes by itself within minutes after its last name was deleted. gc looks at all of the store at once, also for
what an import or a build that was cut off left, and forgets steps of builds that were not used for a while.`,
		Args: exactArgs(0)}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "tell what would go")
	cmd.Flags().StringVar(&steps, "steps-older", "168h", "forget steps of builds that were not used for so long; 0 = all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		age, err := parseSeconds(steps)
		if err != nil || age < 0 {
			return &exitError{2, fmt.Errorf("--steps-older %q: want a duration like 24h", steps)}
		}
		if age == 0 {
			age = -1
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Layers.CollectLayers(cmd.Context(), &dsecv1.CollectLayersRequest{DryRun: dry, StepsSeconds: age})
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		w := cmd.OutOrStdout()
		for _, d := range resp.GetRemoved() {
			fmt.Fprintf(w, "removed %s\n", d)
		}
		for _, k := range resp.GetKept() {
			fmt.Fprintf(w, "kept %s: %s\n", k.GetDigest(), k.GetWhy())
		}
		fmt.Fprintf(w, "%d layers, %s; %d steps of builds\n", len(resp.GetRemoved()), bytesText(resp.GetRemovedBytes()), resp.GetForgottenSteps())
		return nil
	}
	return cmd
}
