package microvm

import (
	"fmt"
	"os"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// record is what a later process must know of a machine; written before anything is made (without a process), and again
// when QEMU runs.
type record struct {
	ID sandbox.ID `json:"id"`
	qemu.Process
	// Limits of the sandbox: bytes of its disk and of memory inside, processes inside.
	Disk   int64 `json:"disk"`
	Memory int64 `json:"memory"`
	Pids   int64 `json:"pids"`
	// Its place in the node's network, if it has one.
	Net  bool `json:"net,omitempty"`
	Slot int  `json:"slot,omitempty"`
	// The version of its kernel, for people.
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

// save replaces the record.
func (d *Driver) save(r *record) error { return qemu.WriteRecord(d.dir(r.ID), r) }

// load reads a record. Error: sandbox.ErrNotFound.
func (d *Driver) load(id sandbox.ID) (*record, error) {
	r := &record{}
	if err := qemu.ReadRecord(d.dir(id), r); err != nil {
		return nil, fmt.Errorf("machine %s: %w", id, err)
	}
	if r.ID != id {
		return nil, fmt.Errorf("machine %s: %w", id, sandbox.ErrNotFound)
	}
	return r, nil
}

// process opens the recorded process. Error: sandbox.ErrNotFound when it is gone or the number is another's.
func (r *record) process() (*os.File, error) {
	p, err := r.Open()
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", r.ID, err)
	}
	return p, nil
}
