package main

import (
	"fmt"
	"os"

	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/spf13/cobra"
)

func newKernel() *cobra.Command {
	cmd := &cobra.Command{Use: "kernel", Short: "The kernel of microVMs"}
	var o debkernel.Options
	install := &cobra.Command{
		Use:   "install",
		Short: "Fetch Debian's cloud kernel for the microVMs of this machine's nodes",
		Long: `Install gets the kernel's package with apt, from Debian's archive with package lists of its own, and unpacks it into a
cache directory (DSEC_CACHE, or /var/cache/dsec). Nothing of this machine's own packages or kernels changes. A node uses
it from its next microVM on; those that run keep theirs. It needs root, apt-get, dpkg-deb and Debian's keyring.`,
		Example: "  dsec kernel install\n  dsec run --backend microvm --base debian -- uname -r",
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(o.Cache, 0o755); err != nil {
				return err
			}
			o.Log = func(f string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), f+"\n", a...) }
			r, err := debkernel.Fetch(cmd.Context(), &o)
			if err != nil {
				return fmt.Errorf("get the kernel: %w", err)
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": r.Version, "package": r.Package, "dir": r.Dir})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", r.Version)
			return err
		},
	}
	fl := install.Flags()
	fl.StringVar(&o.Cache, "dir", kernelDir(), "`directory` to keep it in; a node is told of another one by --opt kernel=DIR")
	fl.StringVar(&o.Mirror, "mirror", "", "`URL` of a Debian mirror (default deb.debian.org)")
	fl.BoolVar(&o.Update, "update", false, "look for a newer one than is there")
	cmd.AddCommand(install, newKernelBuild(), newKernelList())
	return cmd
}
