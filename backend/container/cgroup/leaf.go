package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// LeafName is the group in which the node's own processes live on a pure v2 host.
const LeafName = "dsec-node"

// required and optional controllers of sandboxes on a pure v2 host.
var (
	required = []string{"memory", "cpu", "pids"}
	optional = []string{"io"}
)

// MoveToLeaf makes room for sandboxes beside this process: a v2 group that has processes of its own cannot divide its
// resources, so the process moves from the group that it was started in (a service with Delegate=yes) into a leaf
// below it. Call it before children are started. On hybrid hosts, and where the group is shared with processes that
// are not ours (a login session), it changes nothing.
func MoveToLeaf() error {
	h, err := readHost()
	if err != nil || !h.pure() {
		return err
	}
	_, err = h.parent()
	return err
}

// parent returns the directory of the v2 tree below which groups can be made, having moved this process out of the
// way where that is needed.
func (h *host) parent() (string, error) {
	own := filepath.Join(h.v2, h.own[""])
	if filepath.Base(own) == LeafName {
		return filepath.Dir(own), nil
	}
	// The root of the tree is the only group without a type, and may hold processes and divide.
	if _, err := os.Stat(filepath.Join(own, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		return own, nil
	}
	leaf := filepath.Join(own, LeafName)
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return "", fmt.Errorf("make control group: %w", err)
	}
	if err := write(filepath.Join(leaf, "cgroup.procs"), "0"); err != nil {
		return "", fmt.Errorf("move to a leaf: %w", err)
	}
	err := enable(own, required, optional)
	if err == nil {
		return own, nil
	}
	if !errors.Is(err, syscall.EBUSY) {
		return "", err
	}
	// Others are in it. As container engines do there, take a group at the top.
	if err := write(filepath.Join(own, "cgroup.procs"), "0"); err != nil {
		return "", fmt.Errorf("move back from a leaf: %w", err)
	}
	_ = os.Remove(leaf) // another process of ours may be in it
	return h.v2, nil
}

// enable turns on the controllers for a group's children: all of must, and what there is of may. It reads first: a
// write that changes nothing still costs.
func enable(dir string, must, may []string) error {
	have, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, err := words(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	var set []string
	for _, c := range must {
		if !have[c] {
			return fmt.Errorf("controller %s in %s: %w: the host's groups do not have it", c, dir, sandbox.ErrUnsupported)
		}
		if !on[c] {
			set = append(set, "+"+c)
		}
	}
	for _, c := range may {
		if have[c] && !on[c] {
			set = append(set, "+"+c)
		}
	}
	if len(set) == 0 {
		return nil
	}
	if err := write(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(set, " ")); err != nil {
		return fmt.Errorf("turn on controllers in %s: %w (give the edge a unit with Delegate=yes)", dir, err)
	}
	return nil
}

func words(path string) (map[string]bool, error) {
	b, err := linux.ReadPlain(path)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, w := range strings.Fields(string(b)) {
		out[w] = true
	}
	return out, nil
}
