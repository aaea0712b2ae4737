package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// v1Controllers are the hierarchies of a hybrid host that each sandbox joins, lateControllers those that it joins when
// it is given a limit there. Each one costs a creation a directory and a change of groups.
var (
	v1Controllers   = []string{"memory", "cpu", "pids"}
	lateControllers = []string{"blkio"}
)

// Tree is the place below which one edge keeps its groups.
type Tree struct {
	v2 string            // directory in the v2 tree
	v1 map[string]string // controller -> directory; empty on a pure v2 host

	moves *os.File // favorMoves; nil = the kernel cannot
}

// Layout tells how a tree lies on this host; kept with the edge's state so that a later process, started from
// another group, finds the same groups.
type Layout struct {
	V2 string            `json:"v2"`
	V1 map[string]string `json:"v1,omitempty"`
}

// host is how groups lie on this machine.
type host struct {
	v2  string            // where the v2 tree is mounted
	v1  map[string]string // controller -> where its hierarchy is mounted
	own map[string]string // controller, "" = v2 -> path of this process's group
}

func (h *host) pure() bool { return len(h.v1) == 0 }

func readHost() (*host, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	h := &host{v1: map[string]string{}, own: map[string]string{}}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			h.own[c] = f[2]
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		switch f[2] {
		case "cgroup2":
			if h.v2 == "" {
				h.v2 = f[1]
			}
		case "cgroup":
			opts := strings.Split(f[3], ",")
			for _, c := range slices.Concat(v1Controllers, lateControllers) {
				if slices.Contains(opts, c) && h.v1[c] == "" {
					h.v1[c] = f[1]
				}
			}
		}
	}
	if h.v2 == "" {
		return nil, fmt.Errorf("cgroups: %w: no v2 tree is mounted", sandbox.ErrUnsupported)
	}
	return h, nil
}

// Detect finds where this process may keep groups called name: below its own groups. On a pure v2 host it moves the
// process to a leaf (MoveToLeaf).
func Detect(name string) (Layout, error) {
	h, err := readHost()
	if err != nil {
		return Layout{}, err
	}
	if h.pure() {
		dir, err := h.parent()
		return Layout{V2: filepath.Join(dir, name)}, err
	}
	l := Layout{V2: filepath.Join(h.v2, h.own[""], name), V1: map[string]string{}}
	for c, dir := range h.v1 {
		l.V1[c] = filepath.Join(dir, h.own[c], name)
	}
	return l, nil
}

// Open makes the tree's directories, bounds the processes of all sandboxes together and, on a pure v2 host, turns its
// controllers on.
func Open(l Layout) (*Tree, error) {
	t := &Tree{v2: l.V2, v1: l.V1}
	for _, d := range t.roots() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make control group: %w", err)
		}
	}
	if t.pure() {
		for _, d := range []string{filepath.Dir(t.v2), t.v2} {
			if err := enable(d, required, optional); err != nil {
				return nil, err
			}
		}
	}
	if err := t.limitPids(); err != nil {
		return nil, err
	}
	t.moves, _ = favorMoves() // dsec doctor says what its absence costs
	return t, nil
}

// pure tells whether all controllers are v2's.
func (t *Tree) pure() bool { return len(t.v1) == 0 }

// Mode names the kind of host: "v2" or "hybrid".
func (t *Tree) Mode() string {
	if t.pure() {
		return "v2"
	}
	return "hybrid"
}

// Dir is the tree's directory in the v2 tree.
func (t *Tree) Dir() string { return t.v2 }

// roots are the tree's directories in the hierarchies that every sandbox joins, v2 first; all adds the others.
func (t *Tree) roots() []string { return t.dirs(v1Controllers) }

func (t *Tree) all() []string { return t.dirs(slices.Concat(v1Controllers, lateControllers)) }

// dirs are the directories for v2 and some v1 controllers, without doubles: one hierarchy may have several.
func (t *Tree) dirs(controllers []string) []string {
	out := []string{t.v2}
	for _, c := range controllers {
		if d := t.v1[c]; d != "" && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// List returns the names of all sandboxes that have a group, in any hierarchy.
func (t *Tree) List() ([]string, error) {
	seen := map[string]bool{}
	var out []string
	for _, d := range t.all() {
		ents, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range ents {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}

// Close removes the tree's own directories if they are empty.
func (t *Tree) Close() error {
	if t.moves != nil {
		t.moves.Close()
		t.moves = nil
	}
	var errs []error
	for _, d := range t.all() {
		if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func write(path, value string) error { return linux.WritePlain(path, value) }
