package main

import (
	"fmt"
	"os"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// osEnv looks a variable up in this program's environment.
func osEnv(name string) (string, bool) { return os.LookupEnv(name) }

func newPack() *cobra.Command {
	var kind string
	var names bool
	req := &dsecv1.PackDiffRequest{}
	cmd := &cobra.Command{
		Use:   "pack ID NAME",
		Short: "Make a layer of what a sandbox or snapshot has changed",
		Long: `The changes since the sandbox was created (with --incremental: since its last incremental pack) become the next version of a
workspace or toolkit called NAME. The sandbox is frozen for some milliseconds and goes on. Patterns are paths from the root
with * (within a name) and ** (any names); each stands for what it matches and all below.`,
		Example: `  dsec pack $id fixed --exclude '/tmp' --exclude '/root/.cache'
  dsec pack $id step --incremental`,
		Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch kind {
			case "":
			case "workspace":
				req.Kind = dsecv1.LayerKind_LAYER_KIND_WORKSPACE
			case "toolkit":
				req.Kind = dsecv1.LayerKind_LAYER_KIND_TOOLKIT
			default:
				return &exitError{2, fmt.Errorf("--kind %q: want workspace or toolkit", kind)}
			}
			req.SandboxId, req.Name = args[0], args[1]
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			p := newProgress(cmd.ErrOrStderr())
			defer p.stop()
			r, err := c.PackDiff(cmd.Context(), req, p.show)
			if err != nil {
				return err
			}
			p.stop()
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), r)
			}
			if err := printImported(cmd, &dsecv1.ImportLayerResponse{Layer: r.GetLayer(), Reused: r.GetReused()}); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), reportText(r.GetReport()))
			if names {
				for _, n := range r.GetReport().GetNames() {
					fmt.Fprintln(cmd.OutOrStdout(), " ", printable(n))
				}
				if r.GetReport().GetNamesCut() {
					fmt.Fprintln(cmd.OutOrStdout(), "  ...")
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&kind, "kind", "", "workspace or toolkit (default: workspace, where the sandbox has only a base)")
	fl.StringArrayVar(&req.Include, "include", nil, "only what `PATTERN` stands for (may be repeated)")
	fl.StringArrayVar(&req.Exclude, "exclude", nil, "all but what `PATTERN` stands for (may be repeated)")
	fl.BoolVar(&req.Incremental, "incremental", false, "only what changed since the last incremental pack; a snapshot is kept for the next")
	fl.BoolVar(&names, "names", false, "show the names that went in")
	return cmd
}
