package cgroup

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// OOMKills counts the sandbox's processes that were killed for memory.
func (s *Sandbox) OOMKills() (int64, error) {
	if s.tree.pure() {
		return readKey(s.dir+"/work/memory.events", "oom_kill")
	}
	return readKey(s.v1("memory", "memory.oom_control"), "oom_kill")
}

// Stats reads what the kernel accounts; disk is not its business.
func (s *Sandbox) Stats() (sandbox.Stats, error) {
	st := sandbox.Stats{At: time.Now()}
	type field struct {
		to   *int64
		path string
	}
	var fields []field
	w := s.dir + "/work/"
	// The v2 tree counts processor time even where it has no controllers.
	used, err := readKey(w+"cpu.stat", "usage_usec")
	if err != nil {
		return st, err
	}
	st.CPUUsage = time.Duration(used) * time.Microsecond
	if s.tree.pure() {
		fields = []field{{&st.MemoryBytes, w + "memory.current"}, {&st.MemoryPeakBytes, w + "memory.peak"},
			{&st.MemoryLimitBytes, w + "memory.max"}, {&st.Pids, w + "pids.current"}, {&st.PidsLimit, w + "pids.max"}}
	} else {
		fields = []field{{&st.MemoryBytes, s.v1("memory", "memory.usage_in_bytes")},
			{&st.MemoryPeakBytes, s.v1("memory", "memory.max_usage_in_bytes")},
			{&st.MemoryLimitBytes, s.v1("memory", "memory.limit_in_bytes")},
			{&st.Pids, s.v1("pids", "pids.current")}, {&st.PidsLimit, s.v1("pids", "pids.max")}}
	}
	for _, f := range fields {
		b, err := linux.ReadPlain(f.path)
		if err != nil {
			return st, err
		}
		v := strings.TrimSpace(string(b))
		if v == "max" {
			continue
		}
		if *f.to, err = strconv.ParseInt(v, 10, 64); err != nil {
			return st, err
		}
	}
	st.OOMKills, err = s.OOMKills()
	return st, err
}

// emptyDeadline bounds how long the removal of a group waits for killed processes to go.
const emptyDeadline = 5 * time.Second

// waitEmpty waits until a group has no process left and removes it with those below.
func waitEmpty(dir string) error {
	err := linux.WaitFile(dir+"/cgroup.events", emptyDeadline, func(b []byte) bool {
		return strings.Contains(string(b), "populated 0")
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return removeAll(dir)
}

// WaitEmpty waits until none of the sandbox's processes is left.
func (s *Sandbox) WaitEmpty(d time.Duration) error {
	err := linux.WaitFile(s.dir+"/cgroup.events", d, func(b []byte) bool {
		return strings.Contains(string(b), "populated 0")
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// WaitFrozen waits until all of the sandbox's work has stopped.
func (s *Sandbox) WaitFrozen(d time.Duration) error {
	return linux.WaitFile(s.dir+"/work/cgroup.events", d, func(b []byte) bool {
		return strings.Contains(string(b), "frozen 1")
	})
}
