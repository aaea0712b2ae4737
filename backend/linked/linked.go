// Package linked is what backends of machines share of the node's network: their places in it, their policies, and which
// sandboxes of a state directory still use it, whatever backend made them and whether or not a driver is open on them.
package linked

import (
	"errors"
	"os"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// In asks look for each of a directory's entries that is named like a sandbox, and returns those that have a link and run.
// look tells whether one has a link and gives its process, which In closes; sandbox.ErrNotFound if there is no record
// or no process. What cannot be read is taken for one that runs.
func In(dir string, look func(sandbox.ID) (linked bool, process *os.File, err error)) ([]sandbox.ID, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []sandbox.ID
	for _, e := range entries {
		id, err := sandbox.ParseID(e.Name())
		if err != nil {
			continue
		}
		has, p, err := look(id)
		if errors.Is(err, sandbox.ErrNotFound) || err == nil && !has {
			continue
		}
		if err == nil {
			ended := linux.Ended(p)
			p.Close()
			if ended {
				continue
			}
		}
		out = append(out, id)
	}
	return out, nil
}
