package main

import (
	"fmt"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cmd/dsec/gitexport"
	"github.com/spf13/cobra"
)

func newLayer() *cobra.Command {
	cmd := &cobra.Command{Use: "layer", Short: "Import, list and remove layers of any kind"}
	cmd.AddCommand(newLayerImport(), newLayerLs("ls", "List layers", 0), newLayerInspect(0), newLayerTag(0), newLayerDiff(0), newLayerVerify(0), newLayerTrace(0),
		newLayerCollapse(), newLayerRm(), newLayerGC())
	return cmd
}

// layerName is the kind and name that exactly one of three flags gives.
type layerName struct{ base, workspace, toolkit string }

func (l *layerName) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.base, "base", "", "a base called `NAME`")
	cmd.Flags().StringVar(&l.workspace, "workspace", "", "a workspace called `NAME`")
	cmd.Flags().StringVar(&l.toolkit, "toolkit", "", "a toolkit called `NAME`")
}

func (l *layerName) get() (kind dsecv1.LayerKind, name string, err error) {
	n := 0
	for _, c := range []struct {
		kind dsecv1.LayerKind
		name string
	}{{dsecv1.LayerKind_LAYER_KIND_BASE, l.base}, {dsecv1.LayerKind_LAYER_KIND_WORKSPACE, l.workspace}, {dsecv1.LayerKind_LAYER_KIND_TOOLKIT, l.toolkit}} {
		if c.name != "" {
			kind, name, n = c.kind, c.name, n+1
		}
	}
	if n != 1 {
		return 0, "", &exitError{2, fmt.Errorf("give one of --base, --workspace and --toolkit NAME")}
	}
	return kind, name, nil
}

func kindText(k dsecv1.LayerKind) string { return enumText(k.String(), "LAYER_KIND_") }

func newLayerImport() *cobra.Command {
	var l layerName
	var prefix string
	var insecure, keepOwner bool
	var hook onStartFlags
	cmd := &cobra.Command{
		Use:   "import {--base|--workspace|--toolkit NAME} SOURCE",
		Short: "Bring a directory, a tar or an image in as a layer",
		Long: `Import publishes a local directory, a tar file (plain, gzip or zstd; - = stdin) or docker://HOST/NAME:TAG as the
next version of a layer; or git:PATH[@REVISION], one commit of a local repository, as its files and a repository of that
commit alone, so that nothing of its history comes along. Files of a directory become root's, except in a base or with --keep-owner.`,
		Example: `  dsec layer import --workspace django --prefix /workspace ./django
  dsec layer import --workspace django --prefix /workspace git:./django@v5.1
  dsec layer import --toolkit agent agent.tar.gz`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, err := l.get()
			if err != nil {
				return err
			}
			if prefix != "" && !strings.HasPrefix(prefix, "/") {
				return &exitError{2, fmt.Errorf("--prefix %q: want an absolute path, like /%s", prefix, prefix)}
			}
			onStart, err := hook.get(cmd)
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			if strings.HasPrefix(args[0], "docker://") {
				if prefix != "" {
					return &exitError{2, fmt.Errorf("--prefix is for directories and tars")}
				}
				return importRemote(cmd, c, &dsecv1.ImportLayerRequest{Kind: kind, Name: name, Source: args[0], Insecure: insecure, OnStart: onStart})
			}
			up := client.Upload{Kind: kindText(kind), Name: name, Prefix: prefix, OnStart: onStart}
			if repo, revision, ok := gitexport.Parse(args[0]); ok {
				return importGit(cmd, c, up, repo, revision)
			}
			return importLocal(cmd, c, up, args[0], keepOwner || kind == dsecv1.LayerKind_LAYER_KIND_BASE)
		},
	}
	l.register(cmd)
	hook.register(cmd)
	cmd.Flags().StringVar(&prefix, "prefix", "", "`DIR` of the layer that the source's root becomes, like /workspace")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "speak plain http to the registry")
	cmd.Flags().BoolVar(&keepOwner, "keep-owner", false, "keep the owners of a directory's files")
	return cmd
}

func newLayerLs(use, short string, kind dsecv1.LayerKind) *cobra.Command {
	return &cobra.Command{
		Use:   use + " [NAME]",
		Short: short,
		Args:  rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.ListLayersRequest{Kind: kind}
			if len(args) == 1 {
				req.Name = args[0]
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			resp, err := c.Layers.ListLayers(cmd.Context(), req)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), resp)
			}
			rows := make([][]string, len(resp.GetLayers()))
			for i, l := range resp.GetLayers() {
				rows[i] = []string{kindText(l.GetKind()), l.GetName(), strings.Join(append([]string{l.GetVersion()}, l.GetTags()...), ","), bytesText(l.GetMetaBytes() + l.GetDataBytes()), fmt.Sprint(l.GetFiles()),
					l.GetCreatedAt().AsTime().Local().Format(time.DateTime), shortDigest(l.GetDigest()), l.GetSource()}
			}
			return table(cmd.OutOrStdout(), "KIND NAME VERSION SIZE FILES CREATED DIGEST SOURCE", rows)
		},
	}
}

func newLayerRm() *cobra.Command {
	var l layerName
	var force bool
	cmd := &cobra.Command{
		Use:   "rm {--base|--workspace|--toolkit NAME[@V]}",
		Short: "Remove a layer's version, or all of them, from the catalogue (what runs keeps them)",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			kind, name, err := l.get()
			if err != nil {
				return err
			}
			return deleteLayer(cmd, kind, name, force)
		},
	}
	l.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also what environments name")
	return cmd
}

// onStartFlags say what is run in each new sandbox that has the layer.
type onStartFlags struct{ command, user, timeout string }

func (f *onStartFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.command, "on-start", "", "`COMMAND` for the sandbox's sh that runs in each new sandbox before anything else")
	cmd.Flags().StringVar(&f.user, "on-start-user", "", "user of --on-start (default: the sandbox's)")
	cmd.Flags().StringVar(&f.timeout, "on-start-timeout", "", "how long --on-start may take (default: 60s)")
}

func (f *onStartFlags) get(cmd *cobra.Command) (*dsecv1.OnStart, error) {
	if f.command == "" {
		if f.user != "" || f.timeout != "" {
			return nil, fmt.Errorf("--on-start-user and --on-start-timeout go with --on-start COMMAND")
		}
		return nil, nil
	}
	o := &dsecv1.OnStart{Argv: []string{"/bin/sh", "-c", f.command}, User: f.user}
	if cmd.Flags().Changed("on-start-timeout") {
		var err error
		if o.TimeoutSeconds, err = parseSeconds(f.timeout); err != nil || o.TimeoutSeconds <= 0 {
			return nil, fmt.Errorf("--on-start-timeout %q: want a duration above 0, like 90s", f.timeout)
		}
	}
	return o, nil
}

func deleteLayer(cmd *cobra.Command, kind dsecv1.LayerKind, nameAt string, force bool) error {
	name, version := nameAt, ""
	if i := strings.LastIndexByte(nameAt, '@'); i > 0 {
		name, version = nameAt[:i], nameAt[i+1:]
	}
	c, err := newClient()
	if err != nil {
		return err
	}
	defer c.Close()
	resp, err := c.Layers.DeleteLayer(cmd.Context(), &dsecv1.DeleteLayerRequest{Kind: kind, Name: name, Version: version, Force: force})
	if err != nil {
		return err
	}
	if wantJSON(cmd) {
		return printProto(cmd.OutOrStdout(), resp)
	}
	for _, l := range resp.GetDeleted() {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s@%s\n", kindText(l.GetKind()), l.GetName(), l.GetVersion())
	}
	return nil
}
