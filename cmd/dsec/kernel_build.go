package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/internal/debkernel"
)

func newKernelBuild() *cobra.Command {
	o := kernel.Options{Cache: cacheDir(), Source: debkernel.Options{Cache: kernelDir()}}
	build := &cobra.Command{
		Use:   "build",
		Short: "Build microVMs' own kernel from Debian's source",
		Long: `Build gets the source of Debian's kernel with apt, from Debian's archive, and builds it with the project's configuration: all
that microVMs need and nothing else, without modules. It takes about half an hour of a processor, at low priority, and 2 GB
of disk meanwhile; what is there is not built again, and an interrupted build goes on where it was. Standard output has the
kernel's directory. It needs gcc, make, bc, flex, bison, libelf-dev and xz-utils.`,
		Example: "  dsec kernel build\n  dir=$(dsec kernel build) && dsec up --opt kernel=$dir",
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Log = func(f string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), f+"\n", a...) }
			o.Source.Log = o.Log
			if err := os.MkdirAll(o.Cache, 0o755); err != nil {
				return err
			}
			r, err := kernel.Build(cmd.Context(), &o)
			if err != nil {
				return fmt.Errorf("build the kernel: %w", err)
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": r.Version, "package": r.Package, "dir": r.Dir})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), r.Dir)
			return err
		},
	}
	fl := build.Flags()
	fl.StringVar(&o.Source.Mirror, "mirror", "", "`URL` of a Debian mirror (default deb.debian.org)")
	fl.BoolVar(&o.Source.Update, "update", false, "look for a newer source than is there")
	fl.IntVarP(&o.Jobs, "jobs", "j", 0, "files compiled at once (default: the number of processors)")
	return build
}

func newKernelList() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the kernels for microVMs on this machine",
		Long:  "Ls lists Debian's kernel, which nodes use if nothing is said, and those that were built here, for --opt kernel=DIR.",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			type row struct {
				Version string `json:"version"`
				Dir     string `json:"dir"`
				Built   bool   `json:"built"`
				Default bool   `json:"default"`
				Bytes   int64  `json:"bytes"` // of the image that is booted, as it lies on disk
			}
			rows := []row{}
			add := func(r *debkernel.Release, dir string) {
				x := row{Version: r.Version, Dir: dir, Built: r.Own, Default: dir == kernelDir()}
				if st, err := os.Stat(r.Image()); err == nil {
					x.Bytes = st.Size()
				}
				rows = append(rows, x)
			}
			if r, err := debkernel.Find(&debkernel.Options{Cache: kernelDir()}); err == nil {
				add(r, kernelDir())
			}
			for _, r := range kernel.List(cacheDir()) {
				add(r, r.Dir)
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			var cells [][]string
			for _, r := range rows {
				kind := "Debian's"
				if r.Built {
					kind = "built"
				}
				if r.Default {
					kind += ", default"
				}
				cells = append(cells, []string{r.Version, kind, fmt.Sprintf("%.1f MB", float64(r.Bytes)/1e6), r.Dir})
			}
			return table(cmd.OutOrStdout(), "VERSION\tKIND\tIMAGE\tDIRECTORY", cells)
		},
	}
}
