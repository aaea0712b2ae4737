package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Join moves a process that was born in the sandbox's v2 group, with all its threads, to its groups in the other
// hierarchies; nothing on a pure v2 host. It is for sandboxes that are one process of the host, which could not be
// born there: do it at once.
func (s *Sandbox) Join(pid int) error {
	for _, root := range s.tree.all()[1:] {
		err := write(filepath.Join(root, s.name, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a hierarchy that is joined only for a limit
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}
