package testkit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/backend/container/cgroup"
)

// traces returns the directories that a node keeps outside of its state directory: its control groups, and the
// shells' place in memory. Ask while it runs: what tells of them goes with it.
func traces(state string) []string {
	var out []string
	if to, err := os.Readlink(filepath.Join(state, "run", "shells")); err == nil {
		out = append(out, to)
	}
	for _, note := range []string{"run/cgroups.json", "run/vm/cgroups.json", "edge/fncall/groups.json"} {
		b, err := os.ReadFile(filepath.Join(state, note))
		var l cgroup.Layout
		if err != nil || json.Unmarshal(b, &l) != nil {
			continue
		}
		out = append(out, l.V2)
		for _, d := range l.V1 {
			out = append(out, d)
		}
	}
	return out
}

// Leftovers finds what remains on the machine of the node whose state directory is given: processes, mounts,
// loop devices, shells, and the directories given (traces).
func Leftovers(state string, groups ...string) ([]string, error) {
	var out []string
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	self := fmt.Sprintf("/proc/%d/cmdline", os.Getpid())
	for _, p := range procs {
		exe, _ := os.Readlink(filepath.Dir(p) + "/exe")
		cwd, _ := os.Readlink(filepath.Dir(p) + "/cwd") // machines run in their directories
		b, err := os.ReadFile(p)
		if err != nil || p == self {
			continue
		}
		line := strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " ")
		ours := strings.HasPrefix(exe, state+"/") || strings.HasPrefix(cwd, state+"/run/") || filepath.Base(exe) == "dsec" && strings.Contains(line, state)
		if ours {
			out = append(out, "process "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], state+"/") {
			out = append(out, "mount "+f[1])
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), state+"/") {
			out = append(out, "loop device over "+strings.TrimSpace(string(b)))
		}
	}
	shells, err := os.ReadDir(filepath.Join(state, "run", "shells"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, s := range shells {
		out = append(out, "shell "+s.Name())
	}
	for _, g := range groups {
		if _, err := os.Stat(g); err == nil {
			out = append(out, "directory "+g)
		}
	}
	return out, nil
}
