package main

import (
	"fmt"
	"os"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newImage() *cobra.Command {
	const base = dsecv1.LayerKind_LAYER_KIND_BASE
	cmd := &cobra.Command{Use: "image", Short: "Import, list and remove base images"}
	cmd.AddCommand(newImageImport(), newImageBuild(), newLayerLs("ls", "List base images", base), newLayerInspect(base), newLayerTag(base),
		newLayerDiff(base), newLayerVerify(base), newLayerTrace(base), newImageRm(), newLayerGC())
	return cmd
}

func newImageImport() *cobra.Command {
	var name string
	var insecure bool
	var disk diskFlags
	cmd := &cobra.Command{
		Use:   "import SOURCE",
		Short: "Bring an image in as a base",
		Long: `Import takes an image from a registry (docker://HOST/NAME:TAG), from an OCI layout directory, or from an
archive of one or of docker save. With --disk it takes the disk of a full virtual machine: a raw or qcow2 file, which is
checked and stored like any layer.`,
		Example: `  dsec image import docker://registry.example/library/debian:13 --name debian
  docker save python:3.12 -o p.tar && dsec image import p.tar --name python
  dsec image import debian.qcow2 --disk --name debian-vm`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			up := client.Upload{Kind: "base", Name: name, Format: "oci"}
			if err := disk.apply(cmd, args[0], &up); err != nil {
				return err
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			if strings.HasPrefix(args[0], "docker://") {
				return importRemote(cmd, c, &dsecv1.ImportLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Name: name, Source: args[0], Insecure: insecure})
			}
			if strings.HasPrefix(args[0], "git:") {
				return &exitError{2, fmt.Errorf("a checkout is no base: dsec layer import --workspace NAME --prefix /workspace %s", args[0])}
			}
			if _, err := os.Stat(args[0]); err != nil {
				return fmt.Errorf("image %q: it is no file here, and no docker://HOST/NAME:TAG", args[0])
			}
			if name == "" {
				return &exitError{2, fmt.Errorf("--name is needed for local images")}
			}
			return importLocal(cmd, c, up, args[0], true)
		},
	}
	disk.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the base (default: the reference)")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "speak plain http to the registry")
	return cmd
}

func newImageRm() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME[@V]...",
		Short: "Remove base images from the catalogue (what runs keeps them)",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, a := range args {
				if err := deleteLayer(cmd, dsecv1.LayerKind_LAYER_KIND_BASE, a, force); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also what environments name")
	return cmd
}
