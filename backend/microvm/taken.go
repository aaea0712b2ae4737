package microvm

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/debkernel"
)

// Taken is the kernel that a driver boots its machines with, from its first machine on.
type Taken struct {
	Version string `json:"version"` // as uname says
	Dir     string `json:"dir"`
}

func takenPath(state string) string { return filepath.Join(state, "run", "vm", "kernel.json") }

// TakenKernel tells which kernel the driver that runs on an edge's state directory has taken; false: none yet.
func TakenKernel(state string) (t Taken, ok bool) {
	b, err := os.ReadFile(takenPath(state))
	return t, err == nil && json.Unmarshal(b, &t) == nil
}

// noteKernel says so to TakenKernel.
func noteKernel(state string, r *debkernel.Release) error {
	b, err := json.Marshal(Taken{Version: r.Version, Dir: r.Dir})
	if err != nil {
		return err
	}
	path := takenPath(state)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// forgetKernel is for a driver that begins: what the one before it took is not its own.
func forgetKernel(state string) error {
	if err := os.Remove(takenPath(state)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
