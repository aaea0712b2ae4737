package microvm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// record is what a later process must know of a machine; written before anything is made (without a process), and again
// when QEMU runs.
type record struct {
	ID    sandbox.ID `json:"id"`
	Boot  string     `json:"boot"` // of the node
	PID   int        `json:"pid,omitempty"`
	Start uint64     `json:"start,omitempty"` // clock ticks since boot: with the pid, names the process
	// Limits of the sandbox: bytes of its disk and of memory inside, processes inside.
	Disk   int64 `json:"disk"`
	Memory int64 `json:"memory"`
	Pids   int64 `json:"pids"`
	// Its place in the node's network, if it has one.
	Net  bool `json:"net,omitempty"`
	Slot int  `json:"slot,omitempty"`
	// What QEMU and kernel it runs, for people.
	Kernel string `json:"kernel,omitempty"`
	// Its hardware, which snapshots need to know: processors, bytes of memory, and whether its layers were put into empty disks.
	CPUs  int   `json:"cpus,omitempty"`
	RAM   int64 `json:"ram,omitempty"`
	Slots int   `json:"slots,omitempty"`
	// Which of its layers are its memory; none: all are disks.
	Mapped []bool `json:"mapped,omitempty"`
	// What it is brought back with, once it is put away: its layers, and that it is.
	Layers []sandbox.LayerRef `json:"layers,omitempty"`
	Saved  bool               `json:"saved,omitempty"`
}

const recordName = "record.json"

// save replaces the record. No fsync: it describes a process, which a crash of the node ends too.
func (d *Driver) save(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir(r.ID), recordName)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// load reads a record. Error: sandbox.ErrNotFound.
func (d *Driver) load(id sandbox.ID) (*record, error) {
	b, err := os.ReadFile(filepath.Join(d.dir(id), recordName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	r := &record{}
	if err != nil || json.Unmarshal(b, r) != nil || r.ID != id {
		return nil, fmt.Errorf("machine %s: %w", id, sandbox.ErrNotFound)
	}
	return r, nil
}

// process opens the recorded process. Error: sandbox.ErrNotFound when it is gone or the number is another's.
func (r *record) process() (*os.File, error) {
	boot, err := linux.BootID()
	if err != nil {
		return nil, err
	}
	gone := fmt.Errorf("QEMU of machine %s: %w", r.ID, sandbox.ErrNotFound)
	if r.PID == 0 || r.Boot != boot {
		return nil, gone
	}
	p, err := linux.OpenPID(r.PID)
	if err != nil {
		return nil, gone
	}
	if start, err := linux.StartTime(r.PID); err != nil || start != r.Start {
		p.Close()
		return nil, gone
	}
	return p, nil
}
