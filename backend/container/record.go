package container

import (
	"bytes"
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
	Net   bool       `json:"net,omitempty"` // it has a link
	Boot  string     `json:"boot"`
	PID   int        `json:"pid,omitempty"`
	Start uint64     `json:"start,omitempty"` // clock ticks since boot: with the pid, names the process
}

const recordName = "record.json"

func (d *Driver) shellDir(id sandbox.ID) string { return filepath.Join(d.shellsDir, string(id)) }

// save adds a line to the record; the last whole line counts, so that a crash in between leaves the one before (no
// fsync: it describes processes, which a crash of the machine ends too).
func (d *Driver) save(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(d.shellDir(r.ID), recordName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// load reads a record. Error: sandbox.ErrNotFound when there is none, or nothing whole in it: then no process was
// made either.
func (d *Driver) load(id sandbox.ID) (*record, error) {
	b, err := os.ReadFile(filepath.Join(d.shellDir(id), recordName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := bytes.Split(b, []byte("\n"))
	for i := len(lines) - 2; i >= 0; i-- { // what follows the last newline was cut short
		r := &record{}
		if json.Unmarshal(lines[i], r) == nil && r.ID == id {
			return r, nil
		}
	}
	return nil, fmt.Errorf("container %s: %w", id, sandbox.ErrNotFound)
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
