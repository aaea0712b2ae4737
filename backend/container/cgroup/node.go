package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// limitPids bounds the processes and threads of all sandboxes together to four fifths of what the machine can number:
// the limits of many sandboxes add up to more, and what the node itself could not start would be everybody's loss.
// On hybrid hosts dsec-init's own threads are not counted, because only its nursery joins the group.
func (t *Tree) limitPids() error {
	most, err := maxPids()
	if err != nil {
		return err
	}
	dir := t.v2
	if !t.pure() {
		if dir = t.v1["pids"]; dir == "" {
			return nil
		}
	}
	if err := write(filepath.Join(dir, "pids.max"), strconv.FormatInt(most, 10)); err != nil {
		return fmt.Errorf("limit the processes of all sandboxes: %w", err)
	}
	return nil
}

// maxPids is what all sandboxes may have of what the machine can number.
func maxPids() (int64, error) {
	ids, err := readInt("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	threads, err := readInt("/proc/sys/kernel/threads-max")
	if err != nil {
		return 0, err
	}
	n := min(ids, threads)
	return n - n/5, nil
}
