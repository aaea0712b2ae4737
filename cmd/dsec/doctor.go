package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/spf13/cobra"
)

// minPIDs is the pid_max below which it, and not memory, bounds the number of sandboxes: each takes about eight.
const minPIDs = 100000

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine offers, and what is missing and what that costs",
		Long:  "Doctor tries what DSec needs of this machine. It exits 1 when the container backend cannot run.",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := append(feature.Probe(), cgroupMode(), pidMax())
			unfit := 0
			for _, r := range all {
				if r.Level == feature.Required && !r.Have {
					unfit++
				}
			}
			var err error
			if wantJSON(cmd) {
				err = printJSON(cmd.OutOrStdout(), map[string]any{"features": all, "containers": unfit == 0})
			} else {
				err = table(cmd.OutOrStdout(), "FEATURE STATE SINCE DETAIL WHAT-ITS-ABSENCE-COSTS", featureRows(all))
			}
			if err == nil && unfit > 0 {
				err = fmt.Errorf("containers cannot run here: %d required features are missing", unfit)
			}
			return err
		},
	}
}

func featureRows(all []feature.Result) [][]string {
	rows := make([][]string, len(all))
	for i, r := range all {
		state := "ok"
		switch {
		case r.Have:
		case r.Level == feature.Required:
			state = "MISSING"
		case r.Level == feature.Later:
			state = "missing (not needed yet)"
		default:
			state = "missing"
		}
		rows[i] = []string{r.Name, state, orDash(r.Since), orDash(r.Detail), orDash(r.Lost)}
	}
	return rows
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// cgroupMode tells which of the two implementations of limits is at work.
func cgroupMode() feature.Result {
	r := feature.Result{Name: "cgroup v2 controllers", Level: feature.Wanted, Since: "4.5", Detail: "v1 and v2 side by side"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		r.Have, r.Detail = true, "pure v2"
		return r
	}
	r.Lost = "limits come from v1: no memory.high, no memory.reclaim, memory kills are counted per sandbox"
	return r
}

func pidMax() feature.Result {
	r := feature.Result{Name: "kernel.pid_max", Level: feature.Wanted}
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	n, perr := strconv.Atoi(strings.TrimSpace(string(b)))
	if r.Detail = strings.TrimSpace(string(b)); err != nil || perr != nil {
		r.Detail = "unreadable"
	}
	if r.Have = n >= minPIDs; !r.Have {
		r.Lost = fmt.Sprintf("about %d sandboxes at once (sysctl kernel.pid_max=%d)", n/8, 4194304)
	}
	return r
}
