package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/spf13/cobra"
)

// minFiles is the fs.file-max from which a sandbox's memory bounds its open files first.
const minFiles = 100_000_000

// minPIDs is the pid_max below which it, and not memory, bounds the number of sandboxes: each takes about eight.
const minPIDs = 100000

func newDoctor() *cobra.Command {
	var state, require string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine offers, and what is missing and what that costs",
		Long: `Doctor tries what DSec needs of this machine. It exits 1 when the container backend cannot run. What --require names,
or the node of the state directory was started with (dsec up --require), counts as needed. The kernel of microVMs is the one that
this node takes, or where none runs that a node would take.`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			demanded, err := demands(state, require)
			if err != nil {
				return &exitError{2, fmt.Errorf("--require: %w", err)}
			}
			node := runningNode(state)
			all := append(feature.Probe(), cgroupMode(), pidMax(), fileMax(), node.machineKernel(), accelerator(), node.machineMemory())
			feature.Demand(all, demanded)
			unfit := 0
			for _, r := range all {
				if r.Level == feature.Required && !r.Have {
					unfit++
				}
			}
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
	stateFlag(cmd, &state)
	cmd.Flags().StringVar(&require, "require", "", "`features` to count as needed: "+strings.Join(feature.Words(), ", "))
	return cmd
}

// demands are the features that the flag, or else the node that runs on the state directory, requires.
func demands(state, require string) ([]string, error) {
	if require != "" {
		return feature.Named(require)
	}
	return feature.Named(runningNode(state).opts["require"])
}

func featureRows(all []feature.Result) [][]string {
	rows := make([][]string, len(all))
	for i, r := range all {
		state := "ok"
		switch {
		case r.Have && r.Demanded:
			state = "ok (required by configuration)"
		case r.Have:
		case r.Level == feature.Required:
			state = "MISSING"
			if r.Demanded {
				state = "MISSING (required by configuration)"
			}
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
	r, n := sysctl("kernel/pid_max")
	if r.Have = n >= minPIDs; !r.Have {
		r.Lost = fmt.Sprintf("about %d sandboxes at once (sysctl kernel.pid_max=%d)", n/8, 4194304)
	}
	return r
}

func fileMax() feature.Result {
	r, n := sysctl("fs/file-max")
	if r.Have = n >= minFiles; !r.Have {
		r.Lost = fmt.Sprintf("one sandbox may open all files that the machine allows, and others then none (sysctl fs.file-max=%d)", math.MaxInt64)
	}
	return r
}

// sysctl reads a number below /proc/sys; 0 when it cannot be read.
func sysctl(name string) (feature.Result, int64) {
	r := feature.Result{Name: strings.ReplaceAll(name, "/", "."), Level: feature.Wanted, Detail: "unreadable"}
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return r, 0
	}
	r.Detail = strings.TrimSpace(string(b))
	n, _ := strconv.ParseInt(r.Detail, 10, 64)
	return r, n
}

// accelerator tells what runs the instructions of microVMs.
func accelerator() feature.Result {
	r := feature.Result{Name: "accelerator of microVMs", Level: feature.Wanted, Have: feature.Have("KVM") == nil, Detail: "kvm"}
	if !r.Have {
		r.Detail, r.Lost = "tcg: by emulation", "microVMs run ten times slower and more"
	}
	return r
}
