package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// feature is one thing that the host has or lacks.
type feature struct {
	Name string `json:"name"`
	// Have is "yes", "no" or what was found.
	OK      bool   `json:"ok"`
	Have    string `json:"have"`
	Want    string `json:"want,omitempty"`
	Missing string `json:"missing,omitempty"` // what its absence costs
	// Required: the container backend cannot run without it.
	Required bool `json:"required"`
}

// doctorProbes yield the features in the order in which they are shown.
var doctorProbes []func() []feature

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine offers, and what is missing and what that costs",
		Long:  "Doctor probes this machine. It exits 1 when the container backend cannot run.",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := []feature{}
			unfit := 0
			for _, p := range doctorProbes {
				for _, f := range p() {
					all = append(all, f)
					if f.Required && !f.OK {
						unfit++
					}
				}
			}
			if wantJSON(cmd) {
				if err := printJSON(cmd.OutOrStdout(), map[string]any{"features": all, "containers": unfit == 0}); err != nil {
					return err
				}
			} else {
				rows := make([][]string, len(all))
				for i, f := range all {
					mark, cost := "ok", "-"
					if !f.OK {
						mark, cost = "missing", f.Missing
						if f.Required {
							mark = "MISSING"
						}
					}
					rows[i] = []string{f.Name, mark, f.Have, orDash(f.Want), cost}
				}
				if err := table(cmd.OutOrStdout(), "FEATURE STATE HAVE WANT WHAT-ITS-ABSENCE-COSTS", rows); err != nil {
					return err
				}
			}
			if unfit > 0 {
				return fmt.Errorf("containers cannot run here: %d required features are missing", unfit)
			}
			return nil
		},
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
