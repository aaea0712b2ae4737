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
kernel's directory. Nodes that are told nothing else take it for their microVMs, those that run once their edge starts again. It
needs gcc, make, bc, flex, bison, libelf-dev and xz-utils.`,
		Example: "  dsec kernel build\n  dsec kernel ls\n  dsec up --opt kernel=debian    # all the same",
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
	fl.BoolVar(&o.Urgent, "urgent", false, "build at this command's priority, not at a low one")
	fl.BoolVar(&o.Keep, "keep-tree", false, "leave the tree that it was built in: built with another configuration, it takes less time")
	fl.IntVarP(&o.Jobs, "jobs", "j", 0, "files compiled at once (default: the number of processors)")
	return build
}
