package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/internal/debkernel"
)

// kernelRow is a kernel in `dsec kernel ls --json`.
type kernelRow struct {
	Version string `json:"version"`
	Dir     string `json:"dir"`
	Built   bool   `json:"built"`
	Default bool   `json:"default"`         // nodes that are told nothing else take it
	Unfit   string `json:"unfit,omitempty"` // why a node takes it only if it is told to
	Bytes   int64  `json:"bytes"`           // of the image that is booted, as it lies on disk
}

// listKernels are Debian's and those that were built.
func listKernels() []kernelRow {
	taken := ""
	if r, err := chooseKernel(""); err == nil {
		taken = r.Image()
	}
	rows := []kernelRow{}
	add := func(r *debkernel.Release, dir, unfit string) {
		x := kernelRow{Version: r.Version, Dir: dir, Built: r.Own, Default: r.Image() == taken, Unfit: unfit}
		if st, err := os.Stat(r.Image()); err == nil {
			x.Bytes = st.Size()
		}
		rows = append(rows, x)
	}
	if r, err := debkernel.Find(&debkernel.Options{Cache: kernelDir()}); err == nil {
		add(r, kernelDir(), "")
	}
	for _, r := range kernel.List(cacheDir()) {
		add(r, r.Dir, kernel.Unfit(r))
	}
	return rows
}

func newKernelList() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the kernels for microVMs on this machine",
		Long: `Ls lists Debian's kernel and those that were built here. The default is what nodes take that are told nothing else (dsec up
--opt kernel=own, debian or DIRECTORY): the newest that was built of this program's configuration, or else Debian's.`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows := listKernels()
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			var cells [][]string
			for _, r := range rows {
				kind := "Debian's"
				if r.Built {
					kind = "built"
				}
				if r.Unfit != "" {
					kind += ", " + r.Unfit
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
