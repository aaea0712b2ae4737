package fullvm

import (
	"fmt"
	"os"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// record is what a later process must know of a machine; written before anything is made (without a process), and again
// when QEMU runs.
type record struct {
	ID sandbox.ID `json:"id"`
	qemu.Process
	// Limits of the sandbox, bytes.
	Disk   int64 `json:"disk"`
	Memory int64 `json:"memory"`
	Pids   int64 `json:"pids,omitempty"` // of the agent's commands
	// What its hardware has besides: processors, and whether there is a seed disk.
	CPUs int  `json:"cpus,omitempty"`
	Seed bool `json:"seed,omitempty"`
	// What an agent inside is told; without variables, for those may be secrets.
	Hostname        string `json:"hostname,omitempty"`
	User            string `json:"user,omitempty"`
	Workdir         string `json:"workdir,omitempty"`
	NoNewPrivileges bool   `json:"no_new_privileges,omitempty"`
	// Image is what it started from.
	Image layer.Digest `json:"image"`
	// Firmware is bios or uefi.
	Firmware disk.Firmware `json:"firmware"`
	// Its place in the node's network, if it has one, and the address that its interface has from the hardware.
	Net  bool   `json:"net,omitempty"`
	Slot int    `json:"slot,omitempty"`
	MAC  string `json:"mac,omitempty"`
	// Blank names the picture of a screen that nothing has set up yet.
	Blank string `json:"blank,omitempty"`
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
