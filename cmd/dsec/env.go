package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func newEnv() *cobra.Command {
	cmd := &cobra.Command{Use: "env", Short: "Name stacks of layers (environments), look into them, remove them"}
	cmd.AddCommand(newEnvCreate(), newEnvLs(), newEnvInspect(), newEnvRm(), newEnvDiff(), newEnvVerify(), newEnvTrace(), newLayerGC())
	return cmd
}

func newEnvCreate() *cobra.Command {
	var f specFlags
	var replace bool
	cmd := &cobra.Command{
		Use:   "create NAME [flags]",
		Short: "Name a base, workspace and toolkits, with defaults for the sandboxes that are made of them",
		Long: `What is named without a version (python:3.12) moves when the name gets another version; what is pinned (python:3.12@v7,
python:3.12@stable) stays with that version or tag. Limits, variables, user and directory hold where a sandbox is given none.`,
		Example: `  dsec env create django --base python:3.12@v7 --workspace django --toolkit agent -m 2g -e CI=1
  dsec run --environment django -- python -m pytest`,
		Args: exactArgs(1),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.image, "image", "", "base by the reference `REF` that it was imported from, or by its name")
	fl.StringVar(&f.base, "base", "", "base layer `NAME[@V]`")
	fl.StringVar(&f.workspace, "workspace", "", "workspace layer `NAME[@V]`")
	fl.StringArrayVar(&f.toolkits, "toolkit", nil, "toolkit layer `NAME[@V]` (may be repeated, bottom to top)")
	fl.StringVarP(&f.memory, "memory", "m", "", "memory limit, like 512m")
	fl.Float64Var(&f.cpus, "cpus", 0, "CPU limit in cores, like 1.5")
	fl.StringVar(&f.disk, "disk", "", "size of the writable layer, like 4g")
	fl.Int64Var(&f.pids, "pids", 0, "limit of processes and threads")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `NAME=VALUE`, or NAME to keep this one's")
	fl.StringVarP(&f.user, "user", "u", "", "default user of commands")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "default working directory")
	fl.BoolVar(&replace, "replace", false, "change the environment when there is one of the name")
	f.backend = "container"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		spec, err := f.spec(cmd)
		if err != nil {
			return &exitError{2, err}
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		e := &dsecv1.NamedEnvironment{Name: args[0], Stack: spec.GetEnvironment(), Limits: spec.GetLimits(), Env: spec.GetEnv(), User: spec.GetUser(), Workdir: spec.GetWorkdir()}
		resp, err := c.Environments.CreateEnvironment(cmd.Context(), &dsecv1.CreateEnvironmentRequest{Environment: e, Replace: replace})
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", resp.GetEnvironment().GetName(), environmentText(resp.GetEnvironment().GetStack()))
		return err
	}
	return cmd
}

func newEnvLs() *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "List environments", Args: exactArgs(0), RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Environments.ListEnvironments(cmd.Context(), &dsecv1.ListEnvironmentsRequest{})
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		var rows [][]string
		for _, e := range resp.GetEnvironments() {
			rows = append(rows, []string{e.GetName(), environmentText(e.GetStack()), e.GetUpdatedAt().AsTime().Local().Format(time.DateTime)})
		}
		return table(cmd.OutOrStdout(), "NAME STACK UPDATED", rows)
	}}
}

func newEnvInspect() *cobra.Command {
	var f specFlags
	var paths int32
	cmd := &cobra.Command{
		Use:   "inspect [NAME] [--base NAME --workspace NAME --toolkit NAME...]",
		Short: "Show what an environment, or any stack, is made of now, and which layer hides what of which other",
		Args:  rangeArgs(0, 1),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.image, "image", "", "base by the reference `REF` that it was imported from, or by its name")
	fl.StringVar(&f.base, "base", "", "base layer `NAME[@V]`")
	fl.StringVar(&f.workspace, "workspace", "", "workspace layer `NAME[@V]`")
	fl.StringArrayVar(&f.toolkits, "toolkit", nil, "toolkit layer `NAME[@V]` (may be repeated, bottom to top)")
	fl.Int32Var(&paths, "paths", 20, "how many hidden paths to list for two layers; 0 = do not look at their files")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		env := &dsecv1.Environment{Image: f.image, Base: f.base, Workspace: f.workspace, Toolkits: f.toolkits}
		if len(args) == 1 {
			env.Name = args[0]
		} else if f.image == "" && f.base == "" {
			return &exitError{2, fmt.Errorf("name an environment, or a stack by --base and the like (`dsec env ls` shows what there is)")}
		}
		req := &dsecv1.InspectEnvironmentRequest{Environment: env, Paths: paths}
		if paths <= 0 {
			req.Paths = -1
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Environments.InspectEnvironment(cmd.Context(), req)
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			return printProto(cmd.OutOrStdout(), resp)
		}
		return printEnvironment(cmd.OutOrStdout(), resp)
	}
	return cmd
}

func layerText(l *dsecv1.ResolvedLayer) string {
	if l.GetName() == "" {
		return shortDigest(l.GetDigest())
	}
	return l.GetKind() + " " + l.GetName() + "@" + l.GetVersion()
}

// printEnvironment lists the layers, bottom to top, what applies at run, and what is hidden.
func printEnvironment(w io.Writer, r *dsecv1.InspectEnvironmentResponse) error {
	var rows [][]string
	for _, l := range r.GetLayers() {
		hook := ""
		if o := l.GetLayer().GetOnStart(); o != nil {
			hook = strings.Join(o.GetArgv(), " ")
		}
		rows = append(rows, []string{layerText(l.GetLayer()), bytesText(l.GetMetaBytes() + l.GetDataBytes()), fmt.Sprint(l.GetFiles()), shortDigest(l.GetLayer().GetDigest()), hook})
	}
	if err := table(w, "LAYER SIZE FILES DIGEST ON-START", rows); err != nil {
		return err
	}
	c := r.GetConfig()
	for _, line := range []struct{ name, text string }{
		{"env", strings.Join(c.GetEnv(), " ")}, {"user", c.GetUser()}, {"workdir", c.GetWorkdir()},
		{"entrypoint", strings.Join(c.GetEntrypoint(), " ")}, {"cmd", strings.Join(c.GetCmd(), " ")},
	} {
		if line.text != "" {
			fmt.Fprintf(w, "%s: %s\n", line.name, printable(line.text))
		}
	}
	for _, h := range r.GetHidden() {
		fmt.Fprintf(w, "%s hides %d names of %s:\n", layerText(r.GetLayers()[h.GetBy()].GetLayer()), h.GetNames(), layerText(r.GetLayers()[h.GetOf()].GetLayer()))
		for _, p := range h.GetPaths() {
			fmt.Fprintf(w, "  %s %s\n", p.GetHow(), printable(p.GetPath()))
		}
	}
	return nil
}

func newEnvRm() *cobra.Command {
	return &cobra.Command{Use: "rm NAME...", Short: "Forget environments (their layers and what runs stay)", Args: rangeArgs(1, -1), RunE: func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		for _, name := range args {
			resp, err := c.Environments.DeleteEnvironment(cmd.Context(), &dsecv1.DeleteEnvironmentRequest{Name: name})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				err = printProto(cmd.OutOrStdout(), resp)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}}
}
