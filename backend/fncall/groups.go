package fncall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/internal/linux"
)

// groups is the place of the workers' control groups: a directory in each hierarchy, and one below for each runtime.
type groups struct {
	layout cgroup.Layout
	tree   *cgroup.Tree
	places int // calls that run at once
}

// weigh makes a directory of groups weigh as much as that many processes: without it all calls together would get what
// one process of a neighbour gets.
func (g *groups) weigh(dir string) error {
	file, value := "cpu.weight", min(100*g.places, 10_000)
	if len(g.layout.V1) > 0 {
		file, value = "cpu.shares", min(1024*g.places, 262_144)
	}
	if err := linux.WritePlain(filepath.Join(dir, file), strconv.Itoa(value)); err != nil {
		return fmt.Errorf("weigh function calls: %w", err)
	}
	return nil
}

// cpu is the tree's directory that shares the processor out; "" where nothing does.
func (g *groups) cpu() string {
	if len(g.layout.V1) > 0 {
		return g.layout.V1["cpu"]
	}
	return g.layout.V2
}

// openGroups finds the place that an earlier process chose, or chooses one below this process's own groups.
func openGroups(state, name string, places int) (*groups, error) {
	tree, err := cgroup.Find(filepath.Join(state, "groups.json"), name)
	if err != nil {
		return nil, err
	}
	g := &groups{places: places, tree: tree, layout: tree.Layout()}
	if dir := g.cpu(); dir != "" {
		if err := g.weigh(dir); err != nil {
			return nil, err
		}
	}
	return g, g.sweep()
}

// dirs are the tree's directories, v2 first.
func (g *groups) dirs() []string {
	l := []string{g.layout.V2}
	for _, c := range []string{"memory", "pids", "cpu"} {
		if d := g.layout.V1[c]; d != "" {
			l = append(l, d)
		}
	}
	return l
}

// make makes a runtime's directories.
func (g *groups) make(name string) (cell.Groups, error) {
	for _, d := range g.dirs() {
		if err := os.MkdirAll(filepath.Join(d, name), 0o755); err != nil {
			return cell.Groups{}, fmt.Errorf("make control group: %w", err)
		}
	}
	in := func(dir string) string {
		if dir == "" {
			return ""
		}
		return filepath.Join(dir, name)
	}
	out := cell.Groups{V2: in(g.layout.V2), Memory: in(g.layout.V1["memory"]), Pids: in(g.layout.V1["pids"]), CPU: in(g.layout.V1["cpu"])}
	if len(g.layout.V1) == 0 {
		if err := linux.WritePlain(filepath.Join(out.V2, "cgroup.subtree_control"), "+memory +pids +cpu"); err != nil {
			return out, fmt.Errorf("turn on controllers: %w", err)
		}
	}
	if dir := in(g.cpu()); dir != "" {
		return out, g.weigh(dir)
	}
	return out, nil
}

// remove kills what is in a runtime's groups and removes them.
func (g *groups) remove(name string) error {
	kill := filepath.Join(g.layout.V2, name)
	if err := linux.WritePlain(filepath.Join(kill, "cgroup.kill"), "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("end calls: %w", err)
	}
	if dir := g.layout.V1["cpu"]; dir != "" {
		// Only slots' threads are left here: of a worker that is ending, or that does not know yet that its edge has.
		procs, _ := filepath.Glob(filepath.Join(dir, name, "*", "cgroup.procs"))
		for _, p := range procs {
			killAll(p)
		}
	}
	var errs []error
	for _, d := range g.dirs() {
		errs = append(errs, removeTree(filepath.Join(d, name)))
	}
	return errors.Join(errs...)
}

// killAll kills the processes of a group, named by its list of them.
func killAll(procs string) {
	b, err := linux.ReadPlain(procs)
	if err != nil {
		return
	}
	for line := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// removeTree removes a directory of groups, two levels deep, when its processes have gone.
func removeTree(dir string) error {
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range ents {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return removeGroup(dir)
}

// removeGroup removes one group; killed processes may take a moment to leave it.
func removeGroup(dir string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group: %w", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// sweep removes what an earlier process left.
func (g *groups) sweep() error {
	var errs []error
	seen := map[string]bool{}
	for _, d := range g.dirs() {
		ents, err := os.ReadDir(d)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range ents {
			if e.IsDir() && !seen[e.Name()] && !strings.HasPrefix(e.Name(), ".") {
				seen[e.Name()] = true
				errs = append(errs, g.remove(e.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// close removes the tree.
func (g *groups) close() error { return errors.Join(g.sweep(), g.tree.Close()) }
