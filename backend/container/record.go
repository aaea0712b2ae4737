package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// record is what a later process must know of a shell; written before anything is made (without a process),
// and again when the process runs.
type record struct {
	ID    sandbox.ID `json:"id"`
	Slot  int        `json:"slot"`
	Boot  string     `json:"boot"`
	PID   int        `json:"pid,omitempty"`
	Start uint64     `json:"start,omitempty"` // clock ticks since boot: with the pid, names the process
}

const recordName = "record.json"

func (d *Driver) shellDir(id sandbox.ID) string {
	return filepath.Join(d.cfg.StateDir, "run", "shells", string(id))
}

// save writes the record whole or not at all (no fsync: it describes processes, which a crash of the
// machine ends too).
func (d *Driver) save(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(d.shellDir(r.ID), recordName)
	if r.PID == 0 {
		return os.WriteFile(path, b, 0o600)
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (d *Driver) load(id sandbox.ID) (*record, error) {
	b, err := os.ReadFile(filepath.Join(d.shellDir(id), recordName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("container %s: %w", id, sandbox.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("record of container %s: %w", id, err)
	}
	return r, nil
}

// process opens the recorded process. Error: sandbox.ErrNotFound when it is gone or the number is another's.
func (r *record) process() (*os.File, error) {
	boot, err := linux.BootID()
	if err != nil {
		return nil, err
	}
	gone := fmt.Errorf("dsec-init of container %s: %w", r.ID, sandbox.ErrNotFound)
	if r.PID == 0 || r.Boot != boot {
		return nil, gone
	}
	p, err := linux.OpenPID(r.PID)
	if err != nil {
		return nil, gone
	}
	// Open first, look second: the number cannot move to another process while the descriptor is open.
	if start, err := linux.StartTime(r.PID); err != nil || start != r.Start {
		p.Close()
		return nil, gone
	}
	return p, nil
}
