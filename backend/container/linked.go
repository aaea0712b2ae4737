package container

import (
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/backend/linked"
	"github.com/opendsec/dsec/sandbox"
)

// Linked are the shells and sandboxes of a state directory that have a link and whose dsec-init runs, whether or not a
// driver is open on it. What cannot be read is taken for one that runs.
func Linked(stateDir string) ([]sandbox.ID, error) {
	d := &Driver{shellsDir: filepath.Join(stateDir, shellsLink)} // load needs no more
	return linked.In(d.shellsDir, func(id sandbox.ID) (bool, *os.File, error) {
		r, err := d.load(id)
		if err != nil || !r.Net {
			return false, nil, err
		}
		p, err := r.process()
		return true, p, err
	})
}
