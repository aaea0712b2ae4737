package container

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Linked are the shells and sandboxes of a state directory that have a link and whose dsec-init runs, whether or not a
// driver is open on it. What cannot be read is taken for one that runs.
func Linked(stateDir string) ([]sandbox.ID, error) {
	dir := filepath.Join(stateDir, shellsLink)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := &Driver{shellsDir: dir} // load needs no more
	var out []sandbox.ID
	for _, e := range entries {
		id, err := sandbox.ParseID(e.Name())
		if err != nil {
			continue
		}
		r, err := d.load(id)
		if errors.Is(err, sandbox.ErrNotFound) || err == nil && !r.Net {
			continue
		}
		if err == nil {
			p, err := r.process()
			if errors.Is(err, sandbox.ErrNotFound) {
				continue
			}
			if err == nil {
				ended := linux.Ended(p)
				p.Close()
				if ended {
					continue
				}
			}
		}
		out = append(out, id)
	}
	return out, nil
}
