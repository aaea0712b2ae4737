package microvm

import (
	"fmt"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// EndInit kills a machine's dsec-init, for tests. Error: sandbox.ErrNotFound.
func (d *Driver) EndInit(id sandbox.ID) error {
	return d.provoke(id, control.OpEnd)
}

// Panic makes a machine's kernel panic, for tests; it does not answer any more.
func (d *Driver) Panic(id sandbox.ID) error {
	return d.provoke(id, control.OpPanic)
}

func (d *Driver) provoke(id sandbox.ID, op string) error {
	d.mu.Lock()
	i := d.instances[id]
	d.mu.Unlock()
	if i == nil {
		return fmt.Errorf("machine %s: %w", id, sandbox.ErrNotFound)
	}
	ctl, err := i.control()
	if err != nil {
		return err
	}
	_, forget, err := ctl.send(&control.Request{Op: op})
	if err == nil {
		forget()
	}
	return err
}
